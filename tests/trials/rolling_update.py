"""How long a pod would fail while one version of the plugin takes the other's place.

    python -m tests.trials.rolling_update [--times 10] [--binding late|early] [--period 0.05]

On one node the plugin is ended and started again, as a DaemonSet with maxSurge 0 does it once the
image is there. Meanwhile a small pod is bound in every period (in seconds). Told are the times to
the old plugin's end and to the new one's registration, from SIGTERM, and the pods that were Failed.
"""

import argparse
import datetime as dt
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from itertools import count

from gpushare.clock import SystemClock
from localcluster.cluster import Cluster
from localcluster.gpushare import Gpushare, gpu_node, plugin_of
from localcluster.interrupts import run_command
from localcluster.wait import wait_until
from localcluster.workloads import Workloads
from tests.cluster.bringup import TRIALS, with_extender_on_host
from tests.trials import pods as make
from tests.trials.churn import BIND, PODS
from tests.trials.records import Records

NODE = "r1"
AROUND_SECONDS = 1.0


class Binder:
    """Binds one small pod after the other to the node, past kube-scheduler; notes when."""

    def __init__(self, gpushare: Gpushare, names: Callable[[], str], period: float) -> None:
        self._gpushare = gpushare
        self._names = names
        self._period = period
        self.ended = threading.Event()
        self.bound: dict[str, float] = {}
        self.refused = 0

    def run(self) -> None:
        """Go on until the event is set."""
        with self._gpushare.cluster.api() as api:
            while not self.ended.wait(self._period):
                name = self._names()
                described = make.single(name, 1, schedulerName="nobody")
                uid = api.request("POST", PODS, described)["metadata"]["uid"]
                body = {"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": NODE}
                _, answer = self._gpushare.call("POST", BIND, body)
                if answer["Error"]:
                    self.refused += 1  # the extender keeps the node back; kube-scheduler repeats it
                else:
                    self.bound[name] = _now()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--binding", choices=["late", "early"], default="late")
    parser.add_argument("--period", type=float, default=0.05)
    flags = parser.parse_args()
    with with_extender_on_host([gpu_node(NODE, 2)], name=TRIALS) as cluster:
        gpushare = Gpushare(cluster)
        gpushare.install(early=[NODE] if flags.binding == "early" else [])
        with Records(cluster) as records:
            numbers = count()
            rounds = [
                one_update(gpushare, records, lambda: f"small-{next(numbers)}", flags.period)
                for _ in range(flags.times)
            ]
    for title, values in zip(
        (
            "old one ended after, ms",
            "new one registered after, ms",
            "pods Failed",
            "from the first to the last of them, ms",
            "binds refused meanwhile",
        ),
        zip(*rounds, strict=True),
        strict=True,
    ):
        middle = statistics.median(values)
        print(f"{title}: least {min(values):.0f}, median {middle:.0f}, most {max(values):.0f}")
    return 0


def one_update(
    gpushare: Gpushare, records: Records, names: Callable[[], str], period: float
) -> tuple[float, ...]:
    """Replace the plugin once; return the figures of the end."""
    cluster, plugin = gpushare.cluster, plugin_of(NODE)
    binder = Binder(gpushare, names, period)
    thread = threading.Thread(target=binder.run, daemon=True)
    thread.start()
    time.sleep(AROUND_SECONDS)
    asked = _now()
    cluster.stop(plugin)
    ended = _now()
    cluster.start(plugin)
    gpushare.wait_ready()
    time.sleep(AROUND_SECONDS)
    binder.ended.set()
    thread.join(10)
    registered = _last_registered(cluster)
    wait_until(
        "small pods to run or be Failed",
        lambda: None if all(_is_settled(records, name) for name in binder.bound) else "not all",
        seconds=120,
    )
    failed = [
        at
        for name, at in binder.bound.items()
        if records.named(name).phase == "Failed"  # type: ignore[union-attr]
    ]
    window = max(failed) - min(failed) if failed else 0.0
    print(
        f"{len(binder.bound)} pods bound, {binder.refused} refused, {len(failed)} Failed; ended "
        f"{1e3 * (ended - asked):.0f} ms after SIGTERM, registered "
        f"{1e3 * (registered - asked):.0f} ms after",
        flush=True,
    )
    Workloads(cluster).delete_all(seconds=120)
    ended_ms, registered_ms = 1e3 * (ended - asked), 1e3 * (registered - asked)
    return ended_ms, registered_ms, len(failed), 1e3 * window, binder.refused


def _is_settled(records: Records, name: str) -> bool:
    seen = records.named(name)
    return seen is not None and seen.phase in {"Running", "Failed"}


def _last_registered(cluster: Cluster) -> float:
    lines = cluster.log_path(plugin_of(NODE)).read_text().splitlines()
    said = [json.loads(line) for line in lines if '"message":"registered"' in line]
    return dt.datetime.fromisoformat(said[-1]["time"]).timestamp()


def _now() -> float:
    return SystemClock().wall_ns() / 1e9


if __name__ == "__main__":
    sys.exit(run_command("rolling_update", main))
