"""Record every pod's annotations, and what every container was started with."""

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from gpushare.contract import (
    ANNOTATION_ASSIGNED,
    ANNOTATION_CARDS,
    ENV_CARD_UUID,
    ENV_CONTAINER_UNITS,
    RESOURCE_MEMORY,
)
from gpushare.objects.quantity import parse_units
from localcluster.cluster import Cluster
from localcluster.nvml import read_minors
from localcluster.printed import read_log
from tests.cluster.history import Change, History

_LOOK_SECONDS = 0.25
_KEPT = (ENV_CARD_UUID, ENV_CONTAINER_UNITS)


@dataclass
class Seen:
    """One pod by the API server: its decision, its containers' units, and how it ran."""

    uid: str
    name: str
    units: dict[str, int]
    node: str = ""
    cards: str = ""
    is_assigned: bool = False
    phase: str = ""
    said: str = ""
    ran: bool = False
    gave_up: bool = False
    is_deleted: bool = False
    is_gone: bool = False
    started: set[tuple[str, str]] = field(default_factory=set)
    changed_cards: bool = False

    @property
    def is_over(self) -> bool:
        """Return whether it can have no container any more."""
        return self.is_gone or self.phase in {"Succeeded", "Failed"}


class Records(History):
    """The watch history of all pods, reduced to what is judged, for an hour of churn."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.pods: dict[str, Seen] = {}
        self._by_name: dict[str, Seen] = {}

    def listed(self, found: list[Change]) -> None:
        there = {change.uid for change in found}
        for uid, seen in list(self.pods.items()):
            seen.is_gone = seen.is_gone or uid not in there
        for change in found:
            self.changed(change)

    def changed(self, change: Change) -> None:
        seen = self.pods.get(change.uid)
        if seen is None:
            seen = Seen(change.uid, change.name, _units(change.pod))
            self.pods[change.uid] = self._by_name[change.name] = seen
        status, cards = change.pod["status"], change.annotations.get(ANNOTATION_CARDS, "")
        seen.changed_cards |= bool(seen.cards) and cards != seen.cards
        seen.node, seen.cards = change.node, cards
        seen.is_assigned = change.annotations.get(ANNOTATION_ASSIGNED) == "true"
        seen.is_deleted |= "deletionTimestamp" in change.pod["metadata"]
        seen.is_gone |= change.kind == "DELETED"
        seen.phase = str(status.get("phase", ""))
        seen.said = " ".join(str(status.get(key, "")) for key in ("reason", "message"))
        seen.gave_up |= seen.ran and seen.phase == "Failed" and not seen.is_deleted
        seen.ran |= seen.phase == "Running"
        for key in ("initContainerStatuses", "containerStatuses"):
            for each in status.get(key, []):
                if each.get("containerID"):
                    seen.started.add((each["name"], each["containerID"]))

    def named(self, name: str) -> Seen | None:
        """Return the newest pod of a name."""
        return self._by_name.get(name)


def _units(pod: dict[str, Any]) -> dict[str, int]:
    spec, found = pod["spec"], {}
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        limits = container.get("resources", {}).get("limits", {})
        found[container["name"]] = parse_units(limits.get(RESOURCE_MEMORY, "0") or 0)
    return found


@dataclass(frozen=True)
class Start:
    """One start of one container: its environment, and the UUIDs of its cards."""

    uid: str
    container: str
    again: int
    visible: str | None
    units: str | None
    present: str | None


class Starts:
    """Read in a thread what containers print first, from the nodes' log files.

    Files are deleted with their pod, so very short containers may be missed.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._folders = [cluster.node_folder(node) for node in cluster.node_names]
        self._read: set[Path] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.found: list[Start] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(20)

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            there = set()
            for folder in self._folders:
                for path in _files(folder / "log" / "pods"):
                    there.add(path)
                    if path not in self._read and (start := _start(path, folder)) is not None:
                        self._read.add(path)
                        self.found.append(start)
            self._read &= there


def _files(folder: Path) -> Iterator[Path]:
    for pod in _inside(folder):
        for container in _inside(pod):
            yield from _inside(container)


def _inside(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # it went while we looked
        return []


def _start(path: Path, node: Path) -> Start | None:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return None
    printed = read_log(text)
    if printed is None or not path.stem.isdigit():
        return None
    visible, units = (printed.environment.get(name) for name in _KEPT)
    uuids = {minor: uuid for uuid, minor in read_minors(node / "nvml" / "state").items()}
    present = ",".join(sorted(uuids[minor] for minor in printed.minors)) or None
    uid = path.parent.parent.name.rpartition("_")[2]
    return Start(uid, path.parent.name, int(path.stem), visible, units, present)


def why_wrong(start: Start, seen: Seen | None) -> str | None:
    """Return how a container's start differs from its pod's record; None if it does not."""
    if seen is None:
        return "a pod that the API server never showed"
    units = seen.units.get(start.container)
    wanted = (seen.cards, str(units)) if units else (None, None)
    present = ",".join(sorted(seen.cards.split(","))) if units else None
    is_right = (start.visible, start.units) == wanted and start.present == present
    if is_right and (seen.cards or not units):
        return None
    return (
        f"{seen.name} on {seen.node}, container {start.container}, start {start.again}: "
        f"got {start.visible} {start.units} and the devices of {start.present}, "
        f"on record {wanted[0]} {wanted[1]}"
    )


def kinds_of_failure(pods: dict[str, Seen]) -> Counter[str]:
    """Count why pods never ran, by the part of the kubelet's text that names the cause."""
    found: Counter[str] = Counter()
    for seen in list(pods.values()):
        if seen.phase == "Failed" and not seen.ran and seen.said.strip():
            found[_cause(seen.said)] += 1
    return found


_CAUSES = (
    ("Available: ", "no units left at the kubelet"),
    ("no healthy devices present", "no plugin at admission"),
    ("code = Unavailable", "the plugin ended meanwhile"),
    ("could be for any of", "refused: pods cannot be told apart"),
    ("no pod of this node is waiting", "refused: no pod found"),
    ("refuses", "rejected midway, on purpose"),
    ("OutOfcpu", "beyond the node's capacity, on purpose"),
)


def _cause(said: str) -> str:
    return next((cause for text, cause in _CAUSES if text in said), said[:200])
