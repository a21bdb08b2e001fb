"""What-if's answer as lines for a terminal (pure)."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from gpushare.answers.what_if import Answer, EvictionView


def draw(answer: Answer) -> Iterator[Text]:
    """Where how many fit, why the next one does not, and who would have to go for it."""
    asked, fitting = answer.asked, answer.fitting
    if answer.fits:
        said = "it fits" if asked == 1 else f"all {asked} fit"
        yield Text(said, style="bold green")
    else:
        said = "it does not fit" if asked == 1 else f"{fitting} of {asked} fit"
        yield Text(said, style="bold red")
    for place in answer.places:
        number = "" if asked == 1 else f": {place.pods}"
        yield Text(f"  {place.node}, {gpus(place.cards)}{number}")
    if not answer.fits:
        yield Text("why not, by number of nodes:" if asked == 1 else "why not one more:")
        yield from counted(answer.reasons)
        yield from victims(answer.would_have_to_go)
    yield from unchecked(answer)


def unchecked(answer: Answer) -> Iterator[Text]:
    """What may keep the pod away all the same."""
    yield Text("not checked:", style="dim")
    for each in answer.not_checked:
        yield Text(f"  {each}", style="dim")


def victims(eviction: EvictionView | None) -> Iterator[Text]:
    """Who would have to go."""
    if eviction is None:
        yield Text("no end of pods of lower priority would make room for it")
        return
    yield Text(f"there would be room on {eviction.node}, {gpus(eviction.cards)}, if these ended:")
    for pod in eviction.pods:
        ends = ", about to end" if pod.terminating else ""
        yield Text(f"  {pod.namespace}/{pod.name}  {pod.units}, priority {pod.priority}{ends}")


def counted(reasons: dict[str, int], *, style: str = "") -> Iterator[Text]:
    """Reasons with their numbers of nodes, the most frequent first."""
    digits = max((len(str(number)) for number in reasons.values()), default=1)
    for text, number in sorted(reasons.items(), key=lambda each: (-each[1], each[0])):
        yield Text(f"  {number:>{digits}}  {text}", style=style)


def gpus(indexes: Sequence[int]) -> str:
    return ("GPU " if len(indexes) == 1 else "GPUs ") + ", ".join(map(str, indexes))
