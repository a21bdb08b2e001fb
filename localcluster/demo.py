"""Demo: schedule pods on a real Kubernetes in four scenes, with a picture after each step.

    python -m localcluster.demo

It starts its own cluster and removes it at the end.
"""

import sys
import time
from dataclasses import dataclass
from typing import Final

from localcluster.cluster import Cluster
from localcluster.errors import StateError
from localcluster.gpushare import (
    CARD_MIB,
    ROOT,
    SCHEDULER_CONFIG,
    Gpushare,
    control_plane_node,
    gpu_node,
)
from localcluster.interrupts import run_command
from localcluster.picture import draw
from localcluster.prepare import prepare
from localcluster.wait import wait_until
from localcluster.workloads import HOSTNAME, Workloads, pod

NAME: Final = "gpushare-demo"
SAMPLE: Final = ROOT / "daemonset" / "samples" / "local.yaml"
REPLICAS: Final = 3
HALF, QUARTER = CARD_MIB // 2, CARD_MIB // 4
THREE_QUARTERS: Final = HALF + QUARTER
SHOWN: Final = {
    "GPUSHARE_CARD_UUID": "the GPU",
    "ALIYUN_COM_GPU_MEM_IDX": "its index in the node",
    "ALIYUN_COM_GPU_MEM_CONTAINER": "units that this container requested",
    "ALIYUN_COM_GPU_MEM_POD": "units that its pod requested",
    "ALIYUN_COM_GPU_MEM_DEV": "units that the GPU has",
}


@dataclass(frozen=True)
class Demo:
    """The scenes, independent of each other. Each raises StateError if the result is wrong."""

    cluster: Cluster
    gpushare: Gpushare
    pods: Workloads

    def filtering(self) -> None:
        """Show that Kubernetes adds up a node's GPUs while gpushare checks each GPU."""
        self._title(
            f"1. A pod requests {HALF} MiB. n1 has {QUARTER} free; n2 has {HALF}, half of it on "
            "each GPU; n3 has it on one GPU."
        )
        self.pods.run(
            *(pod(f"n1-{units}", units, node="n1") for units in (CARD_MIB, THREE_QUARTERS)),
            *(pod(f"n2-{letter}", THREE_QUARTERS, node="n2") for letter in "ab"),
            pod("n3-half", HALF, node="n3"),
        )
        self.pods.run(pod("n3-full", CARD_MIB, node="n3"))
        self._picture("n1", "n2", "n3")
        asks = pod("asks-half", HALF, affinity=_one_of("n1", "n2", "n3"))
        self._say("kube-scheduler rejects n1, whose sum is too small, and asks about the others:")
        body = {"Pod": asks, "NodeNames": ["n2", "n3"]}
        _, answer = self.gpushare.call("POST", "/gpushare-scheduler/filter", body)
        for node, why in answer["FailedNodes"].items():
            self._say(f"  {node}: {why}")
        for node in answer["NodeNames"]:
            self._say(f"  {node}: fits")
        self.pods.run(asks)
        self._runs_on("asks-half", *self.gpushare.card_of("n3-half"))
        self._printed("asks-half")
        self._picture("n3", new="asks-half")

    def best_fit(self) -> None:
        """Show that a pod gets the fullest GPU that has enough room."""
        self._title(
            f"2. n4 has GPUs with {THREE_QUARTERS}, {HALF}, {QUARTER} and {CARD_MIB} MiB free. "
            f"A pod requests {HALF}: it gets the GPU that it fills exactly."
        )
        self.fill_four_cards()
        self._picture("n4")
        self.pods.run(pod("asks-half", HALF, node="n4"))
        self._runs_on("asks-half", "n4", 1)
        self._picture("n4", new="asks-half")

    def fill_four_cards(self) -> None:
        """Fill n4 so that its cards have three quarters, a half, a quarter and all free.

        Best fit would put the second pod on the card of the first, so two more pods block that.
        """
        for name, units in (
            ("uses-a-quarter", QUARTER),
            ("in-the-way-1", THREE_QUARTERS),
            ("uses-a-half", HALF),
            ("in-the-way-2", HALF),
            ("uses-three-quarters", THREE_QUARTERS),
        ):
            self.pods.run(pod(name, units, node="n4"))
        self.pods.delete("in-the-way-1", "in-the-way-2", grace=1)

    def sharing(self) -> None:
        """Run a Deployment as a user writes it."""
        self._title(f"3. {REPLICAS} replicas of 1024 MiB each share one GPU.")
        self._say(f"$ kubectl apply -f {SAMPLE.relative_to(ROOT)}\n\n{SAMPLE.read_text()}")
        self.cluster.kubectl("apply", "-f", str(SAMPLE))
        names: list[str] = []

        def missing() -> str | None:
            found = self.pods.all("app=gpushare-sample")
            names[:] = sorted(each["metadata"]["name"] for each in found)
            return None if len(names) == REPLICAS else f"{len(names)} of {REPLICAS} pods"

        wait_until("the Deployment's pods", missing, seconds=20)
        self.pods.wait_running(*names)
        for name in names:
            self._runs_on(name, "n1", 0)
            self._say(f"  its container has {self._devices(name)}")
        self._picture("n1")

    def too_large(self) -> None:
        """Show what a user sees who requests more than any GPU has."""
        self._title("4. A pod requests 20000 MiB. Neither of n1's empty GPUs has as much.")
        self.pods.create(pod("asks-20000", 20000, node="n1"))
        told: list[str] = []

        def silent() -> str | None:
            events = self.pods.events("asks-20000")
            told[:] = [text for text in events if text.startswith("Pending: ")]
            return None if told else f"only the events {events}"

        wait_until("an event that says why", silent, seconds=20)
        self._say(f"`kubectl describe` and `gpushare explain` say why:\n  {told[0]}")
        self.pods.delete("asks-20000")
        self._picture("n1")

    def _runs_on(self, name: str, node: str, card: int) -> None:
        found = self.gpushare.card_of(name)
        if found != (node, card):
            raise StateError(f"{name} should run on {node}, GPU {card}; it runs on {found}")
        present = self.pods.cards(name)
        if present != [f"GPU-{node}-{card}"]:
            raise StateError(f"{name} should have one GPU, GPU-{node}-{card}; it has {present}")
        self._say(f"{name} runs on {node}, GPU {card}.")

    def _printed(self, name: str) -> None:
        self._say("From the environment that its container printed:")
        found = self.pods.environment(name)
        for key, meaning in SHOWN.items():
            self._say(f"  {f'{key}={found[key]}':<44} {meaning}")
        self._say(f"It has these devices of the node's driver: {self._devices(name)}")

    def _devices(self, name: str) -> str:
        return " ".join(line.partition(" ")[0] for line in self.pods.printed(name).devices)

    def _picture(self, *names: str, new: str = "") -> None:
        nodes = [node for node in self.gpushare.inspect() if node["name"] in names]
        self._say("\n" + draw(nodes, new) + "\n")

    def _title(self, text: str) -> None:
        self._say(f"=== {text}")

    def _say(self, text: str) -> None:
        print(text, flush=True)


def _one_of(*nodes: str) -> dict[str, object]:
    term = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": list(nodes)}]}
    terms = {"nodeSelectorTerms": [term]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def play(cluster: Cluster) -> None:
    """Show all scenes on a cluster that has just come up."""
    gpushare = Gpushare(cluster)
    gpushare.install()
    print("gpushare runs: a device plugin on each node, the extender next to kube-scheduler.\n")
    demo = Demo(cluster, gpushare, Workloads(cluster))
    for scene in (demo.filtering, demo.best_fit, demo.sharing, demo.too_large):
        scene()
        demo.pods.delete_all()


def _progress(line: str) -> None:
    print(f"{line}\n", end="", flush=True)  # at once: two threads say lines


def main() -> int:
    """Run the demo and return its exit code. The cluster is always removed."""
    return run_command("demo", _run)


def _run() -> int:
    started = time.monotonic()
    nodes = [gpu_node("n1", 2), gpu_node("n2", 2), gpu_node("n3", 2), gpu_node("n4", 4)]
    nodes.append(control_plane_node())
    _progress("A real Kubernetes on this machine. Only the GPUs are simulated.")
    cluster = Cluster.up(
        nodes,
        name=NAME,
        scheduler_config=SCHEDULER_CONFIG,
        archives=[prepare(_progress)],
        progress=_progress,
    )
    try:
        play(cluster)
    finally:
        cluster.down()
    print(f"Done in {time.monotonic() - started:.0f} s; nothing is left running.")
    print("Next: `make cluster` starts such a cluster and keeps it running for you to try.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
