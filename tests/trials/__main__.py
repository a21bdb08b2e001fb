"""Identity trials: which card each of thousands of containers really got.

    python -m tests.trials [--single 500] [--several 300] [--churn MINUTES] [--seed TEXT]

Waves of equal pods run first, then churn. A container is *wrong* if its environment differs from
its pod's record. Exit code 1 if one was wrong or not started in a wave, or if anything is lost.
"""

import argparse
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from gpushare.clock import SystemClock
from localcluster.errors import LocalClusterError
from localcluster.gpushare import plugin_of
from localcluster.interrupts import run_command
from localcluster.wait import wait_until
from tests.cluster.expect import sums_are_right
from tests.trials import pods as make
from tests.trials.churn import Churner, Killer
from tests.trials.output import printer
from tests.trials.records import Records, Seen, Starts
from tests.trials.trial import NODES, Trial, trial_cluster, usage
from tests.trials.waves import run_wave, waves

THREADS = 12
READ_SECONDS = 20.0  # until the last starts of a wave are read
SAY_SECONDS = 10.0
FORGET_SECONDS = 100.0  # a node that has just failed pods is left alone for a minute at most
SWEPT_SECONDS = 360.0  # the plugin's two minutes, and ample time for the next starts to sweep
SWEEPS_AFTER_SECONDS = 90.0


def main() -> int:
    """Run the trial; return the exit code."""
    flags = _flags()
    began, say = time.monotonic(), printer()
    say(f"seed {flags.seed}")
    with trial_cluster(say) as gpushare:
        cluster = gpushare.cluster
        with Records(cluster) as records, Starts(cluster) as starts:
            trial = Trial(gpushare, records, starts, say)
            try:
                run_waves(trial, flags)
                churn(trial, flags.churn * 60, flags.seed)
                settle(trial)
            except (LocalClusterError, AssertionError) as err:
                trial.lost.append(f"the trial broke: {err}")
            return trial.sum_up(began)


def run_waves(trial: Trial, flags: argparse.Namespace) -> None:
    """Run the waves, every other one with the kubelets stopped while its pods are bound.

    Pods that a kubelet failed because it started before the plugin are created again.
    """
    trial.gpushare.wait_ready()
    rng = random.Random(flags.seed)
    kinds = (("single", flags.single, 90), ("several", flags.several, 60))
    for first, (kind, count, per_wave) in enumerate(kinds):
        for number, wave in enumerate(waves(kind, count, NODES, per_wave), start=first):
            again = one_wave(trial, kind, wave, rng, stopped=number % 2 == 1)
            if again and (failed := one_wave(trial, f"{kind} again", again, rng, stopped=False)):
                trial.lost.append(f"{len(failed)} {kind} never ran")


def one_wave(
    trial: Trial, kind: str, wave: list[dict[str, Any]], rng: random.Random, *, stopped: bool
) -> list[dict[str, Any]]:
    """Run a wave; return its Failed pods, described under other names."""
    begun = time.monotonic()
    seen = run_wave(trial.workloads, trial.records, wave, NODES, stopped=stopped, rng=rng)
    wait_sums_are_right(trial)
    failed = {each.name for each in seen if each.phase == "Failed"}
    if missing := await_starts(trial, [each for each in seen if each.name not in failed]):
        trial.lost.append(f"{missing} containers of {kind} pods were not started right")
    trial.count_off_card()
    how = "kubelets stopped meanwhile" if stopped else "live"
    trial.say(
        f"{len(wave)} {kind}, {how}: {time.monotonic() - begun:.0f} s, "
        f"{len(failed)} Failed; so far {trial.right} right, {len(trial.wrong)} wrong"
    )
    trial.workloads.delete_all(seconds=120)
    forget(trial)
    return [make.renamed(each, "again") for each in wave if each["metadata"]["name"] in failed]


def await_starts(trial: Trial, pods: Sequence[Seen]) -> int:
    """Read until every container of the pods was started right; return how many were not."""
    wanted = {(seen.uid, name) for seen in pods for name in seen.units}

    def missing() -> str | None:
        trial.judge()
        left = wanted - trial.started_right
        return f"{len(left)} are not" if left else None

    with suppress(LocalClusterError):
        wait_until("containers to be started right", missing, seconds=READ_SECONDS, interval=0.2)
    return len(wanted - trial.started_right)


def wait_sums_are_right(trial: Trial) -> None:
    """Wait for the sums of all cards, until the extender has seen the last deletions."""

    def differs() -> str | None:
        try:
            sums_are_right(trial.gpushare, trial.workloads)
        except (AssertionError, LocalClusterError) as problem:
            return str(problem)
        return None

    wait_until("every card to hold what its pods were granted", differs, seconds=10, interval=0.5)


def forget(trial: Trial) -> None:
    """Make every kubelet forget the pods that have ended, as only an Allocate does."""
    names = [f"forget-{node}" for node in NODES]
    described = (make.single(f"forget-{node}", 1, node=node) for node in NODES)
    trial.workloads.run(*described, seconds=FORGET_SECONDS)
    trial.workloads.delete(*names, grace=1)


def churn(trial: Trial, seconds: float, seed: str) -> None:
    """Create and delete from many threads while plugins, kubelets and the extender are killed.

    One plugin is never killed, nor the extender in the second half, to show growth of memory.
    """
    begun, ended = time.monotonic(), threading.Event()
    plugins, kubelets = map(plugin_of, NODES[1:]), [f"kubelet-{node}" for node in NODES]
    always = [*plugins, *kubelets]

    def victims() -> list[str]:
        is_late = time.monotonic() - begun > seconds / 2
        return always if is_late else [*always, "extender", "extender"]

    cluster = trial.gpushare.cluster
    churners = [
        Churner(number, trial.gpushare, trial.records, ended, seed) for number in range(THREADS)
    ]
    killer = Killer(cluster, victims, ended, seed)
    for line in usage(cluster):
        trial.say(f"at the start of churn: {line}")
    runs = [killer.run, *(each.run for each in churners)]
    threads = [threading.Thread(target=run, daemon=True) for run in runs]
    for thread in threads:
        thread.start()
    while time.monotonic() - begun < seconds:
        time.sleep(SAY_SECONDS)
        trial.judge()
        trial.count_off_card()
        trial.check_cards()
        pods = list(trial.records.pods.values())
        trial.say(
            f"churn: {len(pods)} pods, {sum(not each.is_over for each in pods)} alive, "
            f"{sum(killer.killed.values())} kills, {trial.right} right, {len(trial.wrong)} wrong"
        )
    ended.set()
    for thread in threads:
        thread.join(30)
    did = sum((each.did for each in churners), start=Counter())
    trial.say(f"churn did: {dict(did)}")
    trial.say(f"killed: {dict(killer.killed)}")
    for line in usage(cluster):
        trial.say(f"at the end of churn: {line}")


def settle(trial: Trial) -> None:
    """Wait until all bound pods run, delete them, and wait until nothing is left."""
    gpushare, records = trial.gpushare, trial.records
    gpushare.wait_ready(seconds=60)

    def unsettled() -> str | None:
        waiting = [
            f"{seen.name} on {seen.node}: {seen.phase} {seen.said}"
            for seen in list(records.pods.values())
            if seen.node
            and any(seen.units.values())
            and not seen.is_over
            and not seen.is_deleted
            and not (seen.phase == "Running" and seen.is_assigned)
        ]
        return f"{len(waiting)} do not: {waiting[0]}" if waiting else None

    try:
        wait_until("every bound pod to run and say so", unsettled, seconds=120, interval=0.5)
    except LocalClusterError as err:
        trial.lost.append(str(err))
    wait_sums_are_right(trial)
    trial.workloads.delete_all(seconds=180)
    forget(trial)

    def held() -> str | None:
        found = [
            f"{node['name']}: {card}"
            for node in gpushare.inspect()
            for card in node["devs"]
            if card["usedGPU"] or card["reserved"]
        ]
        return "; ".join(found) or None

    try:
        wait_until("no unit and no reserve to be held", held, seconds=60)
    except LocalClusterError as err:
        trial.lost.append(str(err))
    look_for_files(trial)


def look_for_files(trial: Trial) -> None:
    """Count CDI files of deleted pods; a plugin sweeps them from its second minute on."""
    cluster = trial.gpushare.cluster
    uptimes = {each.name: each.uptime or 0.0 for each in cluster.processes()}
    for node in NODES:
        files = list((cluster.node_folder(node) / "run/cdi").glob("gpushare-*"))
        ages = [SystemClock().wall_ns() / 1e9 - path.stat().st_mtime for path in files]
        old = sum(age > SWEPT_SECONDS for age in ages)
        trial.say(f"{node}: {len(files)} CDI files left, {old} of them beyond the sweep's time")
        if old and uptimes[plugin_of(node)] > SWEEPS_AFTER_SECONDS:
            trial.lost.append(f"{node}: {old} CDI files were never swept")


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--single", type=int, default=500, help="pods of one container, in waves")
    parser.add_argument("--several", type=int, default=300, help="pods of several containers")
    parser.add_argument("--churn", type=float, default=2.0, help="minutes of it, after the waves")
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(10**6)))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(run_command("trials", main))
