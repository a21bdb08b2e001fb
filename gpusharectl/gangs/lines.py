"""Format gangs for a terminal (pure)."""

from collections.abc import Iterator
from typing import Final

import msgspec
from rich.text import Text

from gpushare.answers.gangs import GangView, Phase
from gpushare.text.counted import counted
from gpushare.text.durations import short
from gpusharectl.terminal.columns import columns

_STYLES: Final[dict[str, str]] = {
    Phase.PLACED: "green",
    Phase.INVALID: "red",
    Phase.BROKEN: "red",
}
_NUMBERS: Final = frozenset({"BOUND", "MEMBERS", "MINIMUM", "SLOTS", "GATED", "PRIORITY"})


class Gangs(msgspec.Struct, rename="camel"):
    """All that is shown. ``namespace`` is empty for all namespaces.

    Computed from the API server's lists if not ``from_extender``; ``complete`` is false if gangs
    are missing whose number ``left_out`` does not count. ``not_shown`` says what is missing, and
    why.
    """

    gangs: list[GangView]
    namespace: str
    left_out: int = 0
    from_extender: bool = True
    complete: bool = True
    not_shown: list[str] = []


def draw(found: Gangs, *, is_wide: bool) -> Iterator[Text]:
    """Yield a line for each gang, with its sentence at the end."""
    rows = [_cells(each, found, is_wide=is_wide) for each in found.gangs]
    styles = [{"PHASE": _STYLES.get(each.phase, "yellow")} for each in found.gangs]
    yield from columns(rows, styles, _NUMBERS)
    if not rows and found.complete:
        where = f"namespace {found.namespace}" if found.namespace else "any namespace"
        yield Text(f"no gangs in {where}")
    if found.left_out:
        yield Text(f"and {counted(found.left_out, 'more gang')} (-n shows one namespace)")
    for text in found.not_shown:
        yield Text(text, style="dim")


def _cells(gang: GangView, found: Gangs, *, is_wide: bool) -> dict[str, str | int]:
    """Return the cells of a row by the heads of their columns."""
    cells: dict[str, str | int] = {} if found.namespace else {"NAMESPACE": gang.namespace}
    cells |= {
        "NAME": gang.name,
        "BOUND": gang.bound,
        "MEMBERS": gang.members,
        "MINIMUM": gang.minimum or "-",
        "PHASE": gang.phase,
        "ZONE": gang.zone or "-",
        "AGE": short(gang.age_seconds) if gang.created else "?",
    }
    if is_wide:
        cells |= {
            "SLOTS": gang.slots,
            "GATED": gang.gated,
            "PRIORITY": gang.priority,
            "SOURCE": gang.source,
        }
    return cells | {"STATUS": gang.text}
