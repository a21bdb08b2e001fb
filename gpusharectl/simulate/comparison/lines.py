"""Format a comparison of policies for a terminal (pure)."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

from rich.text import Text

from gpushare.contract import RESOURCE_MEMORY
from gpushare.text.counted import counted
from gpushare.text.listed import listed
from gpusharectl.policies.kinds import COMMONEST, Kind, shown
from gpusharectl.policies.table import Row, largest_difference, named, rows_of, table
from gpusharectl.simulate import view
from gpusharectl.simulate.comparison.runs import Comparison, PolicyView


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
    sentence = largest_difference(names, lefts, found.kinds, found.unit_mib)
    if len({_sizes(each) for each in last.policies}) > 1:
        sentence = _who_waits(last.policies, found.unit_mib)  # who runs decides what is left
    if sentence:
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
        yield from _waiting(moment.policies, found.unit_mib)
        yield from rows_of([each.left for each in moment.policies], found.kinds, found.unit_mib)


def _waiting(policies: Sequence[PolicyView], unit_mib: int) -> Iterator[Row]:
    """Yield how many pods of the same kinds are Pending with each policy."""
    found = sorted(chain.from_iterable(each.waiting for each in policies), key=lambda k: k.pods)
    kinds = {_size(kind): kind for kind in found}  # with its name where most are Pending
    counts = [Counter({_size(kind): kind.pods for kind in each.waiting}) for each in policies]
    chosen = shown(kinds.values())
    for kind in chosen:
        yield f"  {named(kind, unit_mib)}", [each.pop(_size(kind), 0) for each in counts]
    if len(kinds) > len(chosen):
        others = f"  and {counted(len(kinds) - len(chosen), 'other kind')}"
        yield others, [each.total() for each in counts]


def _who_waits(policies: Sequence[PolicyView], unit_mib: int) -> str:
    texts = []
    for each in policies:
        names = listed([named(kind, unit_mib) for kind in each.waiting], COMMONEST)
        texts.append(f"{each.policy} leaves {names or 'no pod'} Pending")
    return f"{'; '.join(texts)}."


def _sizes(found: PolicyView) -> frozenset[tuple[int, int]]:
    return frozenset(map(_size, found.waiting))


def _size(kind: Kind) -> tuple[int, int]:
    return kind.units_per_card, kind.cards
