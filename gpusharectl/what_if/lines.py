"""Format what-if's answer for a terminal (pure)."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from gpushare.answers.what_if import Answer, EvictionView


def draw(answer: Answer) -> Iterator[Text]:
    """Yield where how many fit, why the next one does not, and what to evict for it."""
    asked, fitting = answer.asked, answer.fitting
    if answer.fits:
        yield Text("it fits" if asked == 1 else f"all {asked} fit", style="bold green")
    else:
        text = "it does not fit" if asked == 1 else f"{fitting} of {asked} fit"
        yield Text(text, style="bold red")
    for place in answer.places:
        number = "" if asked == 1 else f": {place.pods}"
        yield Text(f"  {place.node}, {gpus(place.cards)}{number}")
    if not answer.fits:
        yield Text("why not, by number of nodes:" if asked == 1 else "why not one more:")
        yield from reasons(answer.reasons)
        yield from victims(answer.would_have_to_go)
    yield from unchecked(answer)


def unchecked(answer: Answer) -> list[Text]:
    """List what may still keep the pod Pending."""
    listed = ["not checked:", *(f"  {each}" for each in answer.not_checked)]
    return [Text(line, style="dim") for line in listed]


def victims(eviction: EvictionView | None) -> Iterator[Text]:
    """Yield the pods of lower priority to evict."""
    if eviction is None:
        yield Text("evicting pods of lower priority would not make room")
        return
    yield Text(f"evicting these pods would make room on {eviction.node}, {gpus(eviction.cards)}:")
    for pod in eviction.pods:
        ends = ", terminating" if pod.terminating else ""
        name = f"{pod.namespace}/{pod.name}" if pod.name else "a pod in another namespace"
        yield Text(f"  {name}  {pod.units}, priority {pod.priority}{ends}")


def reasons(counts: dict[str, int]) -> Iterator[Text]:
    """Yield reasons with their numbers of nodes, the most frequent first."""
    digits = max((len(str(number)) for number in counts.values()), default=1)
    for text, number in sorted(counts.items(), key=lambda each: (-each[1], each[0])):
        yield Text(f"  {number:>{digits}}  {text}")


def gpus(indexes: Sequence[int]) -> str:
    return ("GPU " if len(indexes) == 1 else "GPUs ") + ", ".join(map(str, indexes))
