"""The demo: one pod's whole way on a real Kubernetes, four times, with a picture after each step.

    python -m localcluster.demo

Brings up a cluster of its own and takes it down again at the end.
"""

import sys
import time
from dataclasses import dataclass
from typing import Final

from localcluster.cluster import Cluster
from localcluster.errors import LocalClusterError
from localcluster.gpushare import CARD_MIB, ROOT, SCHEDULER_CONFIG, Gpushare, gpu_node
from localcluster.picture import draw
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, pod

NAME: Final = "gpushare-demo"
SAMPLE: Final = ROOT / "daemonset" / "samples" / "local.yaml"
HALF, QUARTER = CARD_MIB // 2, CARD_MIB // 4
THREE_QUARTERS: Final = HALF + QUARTER
SHOWN: Final = ("NVIDIA_VISIBLE_DEVICES", "ALIYUN_COM_GPU_MEM_")


@dataclass(frozen=True)
class Demo:
    """The steps, each readable without the others."""

    cluster: Cluster
    gpushare: Gpushare
    pods: Workloads

    def filtering(self) -> None:
        """Kubernetes adds up a node's cards; gpushare looks at each card."""
        self._title(
            f"1. A pod asks for {HALF} MiB. Node n1 has {QUARTER} left, n2 has {HALF} but half of "
            "it on each card, n3 has it on one card."
        )
        self.pods.run(
            *(pod(f"n1-{units}", units, node="n1") for units in (CARD_MIB, THREE_QUARTERS)),
            *(pod(f"n2-{letter}", THREE_QUARTERS, node="n2") for letter in "ab"),
            pod("n3-half", HALF, node="n3"),
        )
        self.pods.run(pod("n3-full", CARD_MIB, node="n3"))
        self._picture("n1", "n2", "n3")
        asks = pod("asks-half", HALF)
        self._say("What the extender answers when it is asked about all three nodes:")
        body = {"Pod": asks, "NodeNames": ["n1", "n2", "n3"]}
        _, answer = self.gpushare.call("POST", "/gpushare-scheduler/filter", body)
        for node in answer["NodeNames"]:
            self._say(f"  {node}: fits")
        for node, why in answer["FailedNodes"].items():
            self._say(f"  {node}: {why}")
        self.pods.run(asks)
        self._ran("asks-half")
        self._picture("n3")
        self.pods.delete_all()

    def best_fit(self) -> None:
        """The tightest card that is large enough."""
        self._title(
            f"2. Node n4 has cards with {THREE_QUARTERS}, {HALF}, {QUARTER} and {CARD_MIB} MiB "
            f"free. A pod asks for {HALF}: the card that it fills exactly."
        )
        self.fill_four_cards()
        self._picture("n4")
        self.pods.run(pod("asks-half", HALF, node="n4"))
        self._ran("asks-half")
        self._picture("n4")
        self.pods.delete_all()

    def fill_four_cards(self) -> None:
        """Bring n4's cards to three quarters, a half, a quarter and all free.

        Best fit would put the second filler beside the first, so two others stand in its way.
        """
        for name, units in (
            ("quarter", QUARTER),
            ("in-the-way-1", THREE_QUARTERS),
            ("half", HALF),
            ("in-the-way-2", HALF),
            ("three-quarters", THREE_QUARTERS),
        ):
            self.pods.run(pod(name, units, node="n4"))
        self.pods.delete("in-the-way-1", "in-the-way-2", grace=1)

    def sharing(self) -> None:
        """A Deployment as a user writes it."""
        self._title("3. Three replicas of 1024 MiB each, applied with kubectl: one card for all.")
        self._say(SAMPLE.read_text().rstrip())
        self.cluster.kubectl("apply", "-f", str(SAMPLE))
        names: list[str] = []

        def missing() -> str | None:
            found = self.pods.all("app=gpushare-sample")
            names[:] = sorted(each["metadata"]["name"] for each in found)
            return None if len(names) == 3 else f"{len(names)} of 3 pods"  # noqa: PLR2004

        wait_until("the Deployment's pods", missing, seconds=20)
        self.pods.wait_running(*names)
        for name in names:
            self._ran(name)
        self._picture("n1")
        self.pods.delete_all()

    def too_large(self) -> None:
        """What a user sees who asks for more than any card has."""
        self._title("4. A pod asks for 20000 MiB. Two empty cards have more, no single card has.")
        self.pods.create(pod("asks-20000", 20000, node="n1"))
        told: list[str] = []

        def silent() -> str | None:
            told[:] = [text for text in self.pods.events("asks-20000") if "GPU" in text]
            return None if told else "no event yet"

        wait_until("an event that says why", silent, seconds=20)
        self._say(f"asks-20000 is {self.pods.get('asks-20000')['status']['phase']}: {told[0]}")
        self.pods.delete("asks-20000")
        self._picture("n1")

    def _ran(self, name: str) -> None:
        node = self.pods.get(name)["spec"]["nodeName"]
        _, card = self.gpushare.card_of(name)
        self._say(f"{name} runs on {node}, card {card}. Its container printed:")
        for key, value in self.pods.environment(name).items():
            if key.startswith(SHOWN):
                self._say(f"  {key}={value}")

    def _picture(self, *names: str) -> None:
        nodes = [node for node in self.gpushare.inspect() if not names or node["name"] in names]
        self._say("\n" + draw(nodes) + "\n")

    def _title(self, text: str) -> None:
        self._say(f"\n=== {text}\n")

    def _say(self, text: str) -> None:
        print(text, flush=True)


def start() -> Demo:
    """Bring up the demo's cluster with gpushare on it."""
    nodes = [gpu_node("n1", 2), gpu_node("n2", 2), gpu_node("n3", 2), gpu_node("n4", 4)]
    cluster = Cluster.up(nodes, name=NAME, scheduler_config=SCHEDULER_CONFIG, progress=print)
    gpushare = Gpushare(cluster)
    gpushare.install()
    return Demo(cluster, gpushare, Workloads(cluster))


def main() -> int:
    """Run the demo; return its exit code."""
    started = time.monotonic()
    try:
        demo = start()
        try:
            demo.filtering()
            demo.best_fit()
            demo.sharing()
            demo.too_large()
        finally:
            demo.cluster.down()
    except LocalClusterError as problem:
        print(f"demo: {problem}", file=sys.stderr)
        return 1
    print(f"Done in {time.monotonic() - started:.0f} s; nothing is left running.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
