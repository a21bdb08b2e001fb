"""Format what-if's answer for a terminal (pure)."""

from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import UnsetType
from rich.text import Text

from gpushare.answers.pending.phrases import gpus
from gpushare.answers.what_if import Answer, GangOutlook, PlaceView, QuotaOutlook, VictimView
from gpushare.text.amounts import Amounts
from gpushare.text.counted import counted

_NO_EVICTION: Final = "evicting pods of lower priority would not make room"


def draw(answer: Answer, *, evict: bool = False) -> Iterator[Text]:
    """Yield where how many fit, why the next one does not, and what to evict for it.

    With ``evict`` it is what to evict for all of them, and where they would go then.
    """
    asked, fitting = answer.asked, answer.fitting
    if answer.gang is not None:
        yield from _gang(answer, answer.gang, evict=evict)
        return
    if not isinstance(answer.quota, UnsetType):
        yield Text("not within the quota", style="bold red")
        yield _quota(answer, answer.quota)
        yield Text(f"there is room for {fitting} of {asked}:")
    elif answer.fits:
        yield Text("it fits" if asked == 1 else f"all {asked} fit", style="bold green")
    else:
        text = "it does not fit" if asked == 1 else f"{fitting} of {asked} fit"
        yield Text(text, style="bold red")
    for place in answer.places:
        number = "" if asked == 1 else f": {place.pods}"
        yield Text(f"  {place.node}, {gpus(place.cards)}{number}")
    if fitting < asked:
        yield Text("why not, by number of nodes:" if asked == 1 else "why not one more:")
        yield from reasons(answer.reasons)
        yield from _plan(answer) if evict else victims(answer)
    yield from unchecked(answer.not_checked)


def _gang(answer: Answer, gang: GangOutlook, *, evict: bool) -> Iterator[Text]:
    where = f", in zone {gang.zone}" if gang.zone else ""
    yield Text("fits as a whole: ").append(
        f"yes{where}" if answer.fits else "no", style=f"bold {'green' if answer.fits else 'red'}"
    )
    if not isinstance(answer.quota, UnsetType):
        yield _quota(answer, answer.quota)
        yield Text(f"With more quota: {gang.text}")
    else:
        yield Text(gang.text)
    yield from places(answer.places)
    if evict and not answer.fits:
        yield from _plan(answer)
    yield from unchecked(answer.not_checked)


def _quota(answer: Answer, found: QuotaOutlook) -> Text:
    if found.problem:
        return Text(f"nothing of namespace {found.namespace} is placed now: {found.problem}")
    amounts = Amounts(answer.unit_mib)
    return Text(
        f"The quota of namespace {found.namespace} leaves {amounts.free(found.left)} now, and "
        f"{amounts.needed(found.needed)} are requested (gpushare quota -n {found.namespace})."
    )


def places(found: Iterable[PlaceView]) -> Iterator[Text]:
    """Yield how many pods are where."""
    for place in found:
        on = f", {gpus(place.cards)}" if place.cards else ""
        yield Text(f"  {place.node}{on}: {place.pods}")


def _plan(answer: Answer) -> Iterator[Text]:
    """Yield what would be evicted, by node, and where the pods would go then."""
    found = answer.by_evicting
    if isinstance(found, UnsetType):
        yield Text(_NO_EVICTION)
        return
    number = sum(len(each.pods) for each in found.evictions)
    if number:
        yield Text(f"evicting {counted(number, 'pod')} of lower priority would make room:")
    else:
        yield Text("there is room when pods have ended that are being deleted")
    for eviction in found.evictions:
        for pod in eviction.pods:
            yield _victim(pod, Amounts(answer.unit_mib), f"{eviction.node}  ")
    yield Text("places after that:")
    yield from places(found.places)


def unchecked(texts: Iterable[str]) -> list[Text]:
    """List what may still keep the pod Pending."""
    listed = ["not checked:", *(f"  {each}" for each in texts)]
    return [Text(line, style="dim") for line in listed]


def victims(answer: Answer) -> Iterator[Text]:
    """Yield the pods of lower priority to evict, or those that are about to end anyway."""
    eviction, amounts = answer.would_have_to_go, Amounts(answer.unit_mib)
    if eviction is None:
        yield Text(_NO_EVICTION)
        return
    where = f"{eviction.node}, {gpus(eviction.cards)}"
    if all(pod.terminating for pod in eviction.pods):
        yield Text(f"these pods are being deleted, which makes room on {where}:")
    else:
        yield Text(f"evicting these pods would make room on {where}:")
    for pod in eviction.pods:
        yield _victim(pod, amounts)


def _victim(pod: VictimView, amounts: Amounts, where: str = "") -> Text:
    ends = ", terminating" if pod.terminating else ""
    name = f"{pod.namespace}/{pod.name}" if pod.name else "a pod in another namespace"
    uses = amounts.needed(pod.units) if pod.units else "no GPU memory"
    return Text(f"  {where}{name}  {uses}, priority {pod.priority}{ends}")


def reasons(counts: dict[str, int]) -> Iterator[Text]:
    """Yield reasons with their numbers of nodes, the most frequent first."""
    digits = max((len(str(number)) for number in counts.values()), default=1)
    for text, number in sorted(counts.items(), key=lambda each: (-each[1], each[0])):
        yield Text(f"  {number:>{digits}}  {text}")
