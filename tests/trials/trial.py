"""One trial's cluster, its records and its summary."""

import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from localcluster.cluster import Cluster
from localcluster.errors import ApiError
from localcluster.gpushare import ROOT, Gpushare, gpu_node, plugin_of
from localcluster.workloads import Workloads
from tests.cluster.bringup import TRIALS, with_extender_on_host
from tests.trials import pods as make
from tests.trials.output import exit_code
from tests.trials.records import Records, Start, Starts, kinds_of_failure, why_wrong

LATE, EARLY = ("t1", "t2"), ("t3",)
NODES = (*LATE, *EARLY)
CARDS = 4
_OFF_CARD = re.compile(r"^gpushare_deviceplugin_ids_off_card_total(?:\{.*\})? (\S+)$", re.MULTILINE)


@contextmanager
def trial_cluster(say: Callable[[str], None]) -> Iterator[Gpushare]:
    """Bring up two nodes that bind late and one without CDI that binds early."""
    nodes = [gpu_node(name, CARDS, cdi=name in LATE) for name in NODES]
    with with_extender_on_host(nodes, name=TRIALS, progress=say) as cluster:
        gpushare = Gpushare(cluster)
        gpushare.install()
        for node in NODES:
            words = ["--refuse", make.REFUSED, *(f"r{place}" for place in range(200))]
            cluster.start_program(
                f"refuser-{node}",
                [sys.executable, "-m", "tests.cluster.other_plugin", *words],
                node=node,
                env={"PYTHONPATH": str(ROOT)},
            )
        yield gpushare


@dataclass
class Trial:
    """Counts of the trial; ``wrong`` and ``lost`` must stay empty."""

    gpushare: Gpushare
    records: Records
    starts: Starts
    say: Callable[[str], None]
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    right: int = 0
    started_right: set[tuple[str, str]] = field(default_factory=set)
    off_card: Counter[str] = field(default_factory=Counter)
    _judged: int = 0
    _last_off_card: dict[str, float] = field(default_factory=dict)

    @property
    def workloads(self) -> Workloads:
        return Workloads(self.gpushare.cluster)

    def judge(self) -> None:
        """Compare every start that was read since the last time with its pod's record."""
        fresh: list[Start] = self.starts.found[self._judged :]
        self._judged += len(fresh)
        for start in fresh:
            why = why_wrong(start, self.records.pods.get(start.uid))
            if why is None:
                self.right += 1
                self.started_right.add((start.uid, start.container))
            else:
                self.wrong.append(why)
                self.say(f"WRONG: {why}")

    def count_off_card(self) -> None:
        """Add up the plugins' counts, which restart with their plugin."""
        for node in NODES:
            try:
                found = sum(map(float, _OFF_CARD.findall(self.gpushare.plugin_metrics(node))))
            except ApiError:
                continue
            before = self._last_off_card.get(node, 0.0)
            self.off_card[node] += int(found - before if found >= before else found)
            self._last_off_card[node] = found

    def check_cards(self) -> None:
        """Note cards that hold more than they have."""
        try:
            nodes = self.gpushare.inspect()
        except ApiError:
            return  # the extender has just been killed
        for node in nodes:
            for card in node["devs"]:
                if card["usedGPU"] + card["reserved"] > card["totalGPU"]:
                    self.lost.append(f"{node['name']}: a card holds too much: {card}")
            self.lost += [f"unplaced: {each}" for each in node.get("unplaced") or ()]

    def sum_up(self, began: float) -> int:
        """Print all counts; return the exit code."""
        self.judge()
        pods = list(self.records.pods.values())
        ours = [seen for seen in pods if any(seen.units.values())]
        started = sum(len(seen.started) for seen in pods)
        for seen in pods:
            if seen.gave_up:
                self.lost.append(f"{seen.name} ran and was given up: {seen.said}")
            if seen.changed_cards:
                self.lost.append(f"{seen.name}: its decision changed")
        say = self.say
        say(f"{time.monotonic() - began:.0f} s, {len(ours)} pods, {sum(s.ran for s in ours)} ran")
        say(f"{self._judged} starts of containers read, {started} seen on the API server")
        say(f"  right {self.right}")
        say(f"  WRONG {len(self.wrong)}")
        say(f"device IDs off their card: {dict(self.off_card)}")
        say("pods Failed:")
        for cause, count in kinds_of_failure(self.records.pods).most_common():
            say(f"  {count:5}  {cause}")
        say("refusals in the plugins' logs:")
        for text, count in refusals(self.gpushare.cluster).most_common(12):
            say(f"  {count:5}  {text}")
        say(f"LOST {len(self.lost)}")
        return exit_code(say, self.lost) or int(bool(self.wrong))


_NAMES = re.compile(r"(default/\S+|[0-9a-f-]{36}|GPU-\S+|\b[a-zA-Z0-9]{5} to \w{5}|\b\d+\b)")


def refusals(cluster: Cluster) -> Counter[str]:
    """Count what the plugins refused, by text without names and numbers."""
    found: Counter[str] = Counter()
    wanted = re.compile(r'"message":"refused","call":"(\w+)","why":"((?:[^"\\]|\\.)*)"')
    for node in NODES:
        with Path(cluster.log_path(plugin_of(node))).open(errors="replace") as log:
            for line in log:
                if match := wanted.search(line):
                    text = _NAMES.sub("#", match[2])[:140]
                    found[f"{match[1]} {node}: {text}"] += 1
    return found


def usage(cluster: Cluster) -> list[str]:
    """Return the memory, threads and files of each plugin and the extender."""
    found = []
    for each in cluster.processes():
        if each.pid is None or not each.name.startswith(("extender", "deviceplugin")):
            continue
        try:
            # A plugin's own process is started by the first of its container.
            started = Path(f"/proc/{each.pid}/task/{each.pid}/children").read_text().split()
            process = Path("/proc") / (started[-1] if started else str(each.pid))
            status = (process / "status").read_text()
            files = len(list((process / "fd").iterdir()))
        except OSError:
            continue
        memory = int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) // 1024
        threads = re.findall(r"Threads:\s+(\d+)", status)[0]
        found.append(
            f"{each.name}: {memory} MiB, {threads} threads, {files} files, up {each.uptime:.0f} s"
        )
    return found
