"""Format a comparison of policies for a terminal (pure)."""

from collections.abc import Iterator

from rich.text import Text

from gpushare.contract import RESOURCE_MEMORY
from gpushare.text.counted import counted
from gpusharectl.policies.table import Row, largest_difference, rows_of, table
from gpusharectl.simulate import view
from gpusharectl.simulate.comparison.runs import Comparison


def draw(found: Comparison) -> Iterator[Text]:
    """Yield the table, and what to know about it."""
    if found.left_out:
        yield Text(view.left_out(found.left_out), "yellow")
    unit = f"One unit of {RESOURCE_MEMORY} is {view.unit_name(found.unit_mib)}"
    yield Text(f"{unit}; GPUs by {found.card_policy}.", "dim")
    yield Text(f"Never simulated: {', '.join(found.not_simulated)}.", "dim")
    if found.placed_again:
        pods = counted(found.placed_again, "bound pod")
        yield Text(f"Placed again, by priority and then by age: {pods}.", "dim")
    if found.own_policy:
        pods = counted(found.own_policy, "pod")
        yield Text(f"Placed by a node policy that the pod requests itself: {pods}.", "dim")
    yield Text()
    last = found.moments[-1]
    names = [each.policy for each in last.policies]
    yield from table(names, list(_rows(found)))
    lefts = [each.left for each in last.policies]
    if sentence := largest_difference(names, lefts, found.kinds, found.unit_mib):
        yield Text()
        yield Text(sentence)
    for text in found.ignored:
        yield Text(f"Ignored: {text}", "dim")
    for text in found.unknown:
        yield Text(f"Note: {text}", "yellow")


def _rows(found: Comparison) -> Iterator[Row]:
    for moment in found.moments:
        if len(found.moments) > 1:
            is_last = moment is found.moments[-1]
            what = "at the end" if is_last else "when most is requested"
            yield f"-- {what} ({view.clock(moment.at)})", ()
        yield "pods Pending", [each.pending for each in moment.policies]
        yield from rows_of([each.left for each in moment.policies], found.kinds, found.unit_mib)
