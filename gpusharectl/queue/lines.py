"""Format the queue for a terminal (pure)."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from rich.text import Text

from gpushare.answers.queue.entries import QueueEntry, QueueList, Why
from gpushare.text.amounts import Amounts
from gpushare.text.counted import counted
from gpushare.text.durations import short
from gpusharectl.terminal.columns import columns

_STYLES: Final[dict[str, str]] = {
    Why.STARTING: "green",
    Why.INVALID: "red",
    Why.BROKEN: "red",
    Why.UNREADABLE_QUOTA: "red",
    Why.NO_RIGHT: "red",
}
_NUMBERS: Final = frozenset({"POSITION", "PODS", "REQUESTED", "PRIORITY"})


class Queue(NamedTuple):
    """All that is shown. ``namespace`` is empty for all namespaces."""

    list: QueueList
    namespace: str


def draw(found: Queue, *, is_wide: bool) -> Iterator[Text]:
    """Yield a line for each entry, with what it waits for at the end."""
    entries = found.list.entries
    rows = [_cells(each, found, is_wide=is_wide) for each in entries]
    styles = [{"REASON": _STYLES.get(each.reason, "yellow")} for each in entries]
    yield from columns(rows, styles, _NUMBERS)
    if not rows:
        where = f"namespace {found.namespace} has no pod" if found.namespace else "there is no pod"
        yield Text(f"{where} in the queue; `gpushare explain pod NAME` says why another is Pending")
    if found.list.left_out:
        yield Text(f"and {found.list.left_out} more (-n shows one namespace)")
    if found.namespace and found.list.length:
        positions = counted(found.list.length, "position")
        yield Text(f"The queue of all namespaces has {positions}.", style="dim")


def _cells(entry: QueueEntry, found: Queue, *, is_wide: bool) -> dict[str, str | int]:
    """Return the cells of a row by the heads of their columns."""
    cells: dict[str, str | int] = {"POSITION": entry.place or "-"}
    if not found.namespace:
        cells["NAMESPACE"] = entry.namespace
    cells["NAME"] = entry.name
    if is_wide:
        cells |= {
            "KIND": entry.kind,
            "PODS": entry.pods,
            "REQUESTED": Amounts(found.list.unit_mib).needed(entry.units) if entry.units else "-",
            "PRIORITY": entry.priority,
        }
    cells["WAITING"] = short(entry.waiting_seconds) if entry.since else "?"
    return cells | {"REASON": entry.reason, "WAITS FOR": entry.waits_for}
