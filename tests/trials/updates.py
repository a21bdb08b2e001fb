"""How many pods fail while the device plugin is updated, ended, crashes or is killed.

    python -m tests.trials.updates [--times 5] [--only "rolling update,crash"] [--period 0.2]

The plugin runs from its image. Every period (seconds) a small pod is bound to its node without
kube-scheduler, while each fault happens several times. Exit code 1 if a pod failed in an update, at
SIGTERM or in a crash, or if one failed that was bound later than a second after a kill.
"""

import argparse
import itertools
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from localcluster.errors import LocalClusterError
from localcluster.gpushare import Gpushare, gpu_node
from localcluster.imagebuild import gpushare_image
from localcluster.interrupts import run_command
from localcluster.shipped import Shipped
from localcluster.wait import wait_until
from tests.cluster.arrivals import Arrivals, now
from tests.cluster.bringup import of_image
from tests.cluster.plugin_faults import PATCH, PluginFaults

NODE: Final = "u1"
NAME: Final = "gpushare-updates"
ROLLING: Final = "rolling update"
BEFORE_SECONDS: Final = 1.0
SOME: Final = 8  # pods that must have been bound after all is well again
KILLED_SECONDS: Final = 1.0


@dataclass
class Result:
    """The effect of one fault. Seconds count from the fault."""

    fault: str
    began: float
    bound: int = 0
    failed: list[float] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    longest_wait: float = 0.0
    is_unsettled: bool = False

    @property
    def is_wrong(self) -> bool:
        if self.is_unsettled:
            return True
        if self.fault.startswith("kill"):
            return any(seconds > KILLED_SECONDS for seconds in self.failed)
        return bool(self.failed)


def main() -> int:
    """Run the trial; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--period", type=float, default=0.2)
    flags = parser.parse_args()
    with of_image(gpushare_image(print), gpu_node(NODE, 2), name=NAME) as gpushare:
        faults = PluginFaults(gpushare, NODE)
        faults.prepare()
        gpushare.install()
        Shipped(gpushare.cluster).apply(patches=[PATCH])
        gpushare.wait_ready()
        print(f"memory, MiB: {faults.memory_mib()}", flush=True)
        wanted = flags.only.split(",") if flags.only else list(faults.all)
        results = []
        for _ in range(flags.times):
            for fault in wanted:
                if faults.restarts() and fault != ROLLING:
                    # Otherwise the kubelet delays each restart longer.
                    results.append(one(gpushare, faults, ROLLING, flags.period))
                results.append(one(gpushare, faults, fault, flags.period))
        print(f"memory, MiB: {faults.memory_mib()}", flush=True)
    for fault in dict.fromkeys((*wanted, *(each.fault for each in results))):
        say(fault, [each for each in results if each.fault == fault])
    return int(any(each.is_wrong for each in results))


def one(gpushare: Gpushare, faults: PluginFaults, fault: str, period: float) -> Result:
    """Cause one fault while pods arrive; return how they ended."""
    with Arrivals(gpushare, NODE, period=period) as arrivals:
        time.sleep(BEFORE_SECONDS)
        before = faults.processes()
        result = Result(fault, now())
        faults.all[fault]()

        def same() -> str | None:
            there = faults.processes()
            return None if there and there[-1] not in before else f"processes {there}"

        wait_until("another process of the plugin", same, seconds=60)
        gpushare.wait_ready(seconds=90)
        arrivals.wait_bound(SOME, since=now())
        try:
            arrivals.wait_settled(seconds=60)
        except LocalClusterError as problem:
            result.reasons[str(problem)[:200]] += 1
            result.is_unsettled = True
        found = [each for each in arrivals.all if each.bound]
        result.bound = len(found)
        for each in found:
            if each.failed:
                result.failed.append(each.bound - result.began)
                result.reasons[each.failed[:160]] += 1
            if each.refusals:
                result.refused += 1
        gaps = sorted(each.bound for each in found)
        result.longest_wait = max((b - a for a, b in itertools.pairwise(gaps)), default=0)
    print(
        f"{fault}: {result.bound} bound, {len(result.failed)} Failed"
        + (f" ({min(result.failed):.1f} to {max(result.failed):.1f} s)" if result.failed else "")
        + f", {result.refused} refused first, longest time without a bind "
        f"{result.longest_wait:.1f} s {dict(result.reasons) or ''}",
        flush=True,
    )
    return result


def say(fault: str, results: list[Result]) -> None:
    """Print the sums of a fault."""
    failed = [len(each.failed) for each in results]
    last = [max(each.failed) for each in results if each.failed]
    print(
        f"{fault}: {len(results)} times, {sum(each.bound for each in results)} pods bound, "
        f"{sum(failed)} Failed (median {statistics.median(failed):.0f}, most {max(failed)})"
        + (f", the last one bound {max(last):.1f} s after" if last else "")
    )


if __name__ == "__main__":
    sys.exit(run_command("updates", main))
