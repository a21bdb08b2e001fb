"""Write in one sentence, or a few, where a gang is on its way and what would help (pure)."""

from collections.abc import Sequence
from typing import Final

from gpushare.answers.gangs import GangFacts, GangView, Phase, Shape
from gpushare.text.amounts import needed_gib
from gpushare.text.counted import counted
from gpushare.text.durations import short

MOST_BYTES: Final = 700  # in an Event the sentence about the pod follows
SHAPES_SAID: Final = 3
LATE_SECONDS: Final = 60.0  # of starting, until the sentence says what will happen
_MOST_OF_NAME: Final = 80
_MOST_OF_TEXT: Final = 300

# Where the minimum is written, by source.
_MINIMUM: Final = {
    "native": "minCount of the PodGroup",
    "pod-group": "minMember of the PodGroup",
    "labels": "the label pod-group.scheduling.sigs.k8s.io/min-available",
    "kueue": "the annotation kueue.x-k8s.io/pod-group-total-count",
}


def view(gang: GangFacts) -> GangView:
    """Return a gang as JSON, with its sentence."""
    return GangView(
        namespace=gang.namespace,
        name=gang.name,
        source=gang.source,
        minimum=gang.minimum,
        members=gang.members,
        bound=gang.bound,
        slots=gang.slots,
        gated=gang.gated,
        phase=gang.phase.value,
        zone_key=gang.zone_key,
        zone=gang.zone,
        age_seconds=round(gang.age_seconds, 1),
        priority=gang.priority,
        text=sentence(gang),
    )


def sentence(gang: GangFacts) -> str:
    """Return what people are told about a gang, at most MOST_BYTES."""
    return _cut(_PHASES[gang.phase](gang), MOST_BYTES)


def shapes_text(shapes: Sequence[Shape]) -> str:
    """Return ``8 x 20 GiB``, or ``4 x 20 GiB and 4 x 10 GiB``; the largest first."""
    listed = sorted(shapes, key=lambda each: (-each.mib * each.gpus, -each.mib, -each.pods))
    said = [_shape(each) for each in listed[:SHAPES_SAID]]
    if left := len(listed) - len(said):
        pods = sum(each.pods for each in listed[SHAPES_SAID:])
        said.append(f"{counted(pods, 'pod')} of {counted(left, 'other size')}")
    return _and(said)


def _shape(shape: Shape) -> str:
    if not shape.mib:
        return f"{counted(shape.pods, 'pod')} without GPU memory"
    amount = needed_gib(shape.mib)
    if shape.gpus == 1:
        return f"{shape.pods} x {amount}"
    return f"{shape.pods} x {shape.gpus} GPUs with {amount} on each"


def _members(gang: GangFacts) -> str:
    missing = gang.minimum - gang.members
    text = f"Waiting for {missing} of {counted(gang.minimum, 'member')}."
    foreign = sum(gang.foreign_gates.values())
    if foreign:
        names = sorted(gang.foreign_gates)
        text += (
            f" {counted(foreign, 'pod')} {_have(foreign)} scheduling gates of others, which "
            f"{_do(foreign, 'count')} once they are removed: {_listed(names)}."
        )
    if foreign < missing and gang.source in _MINIMUM:
        text += f" If no more pods are to come, lower {_MINIMUM[gang.source]}."
    return text


def _invalid(gang: GangFacts) -> str:
    problem = _short(gang.problem, _MOST_OF_TEXT).rstrip(".")
    return f"Cannot start: {problem}."


def _room(gang: GangFacts) -> str:
    asked = _asked(gang)
    if gang.bound:
        text = f"Waiting for room for {asked} more"
        if gang.zone:
            text += f" in zone {_short(gang.zone)}, where {gang.bound} {_are(gang.bound)} bound"
    elif not (gang.rooms or gang.reason or gang.gave_up):
        text = f"Waiting for a plan for {asked}"
    elif gang.gave_up:
        text = (
            f"No way to place {asked} was found: the search was given up and is repeated after the "
            "next change. Fewer different sizes make it exact"
        )
    elif gang.zone_key and not gang.zone:
        text = f"No zone has room for {asked}"
    elif gang.zone:
        text = f"Zone {_short(gang.zone)} has no room for {asked}"
    else:
        text = f"No room for {asked} together"
    text += f"{_fitting(gang)}."
    if gang.reason:
        text += f" {_capital(_short(gang.reason, _MOST_OF_TEXT)).rstrip('.')}."
    text += _helps(gang)
    if gang.retry_seconds >= 1:
        text += f" It is tried again in {short(gang.retry_seconds)}."
    return text


def _asked(gang: GangFacts) -> str:
    """Return what has to fit at once; a gang with a smaller minimum need not fit as a whole."""
    pods = sum(each.pods for each in gang.shapes)
    needed = gang.minimum - gang.bound
    if not pods:
        return counted(max(needed, 1), "member")
    text = shapes_text(gang.shapes)
    if 0 < needed < pods:
        return f"{needed} of {text}" if len(gang.shapes) == 1 else f"{needed} pods of {text}"
    return text


def _fitting(gang: GangFacts) -> str:
    if not gang.rooms:
        return ""
    best = gang.rooms[0]
    if best.zone and not gang.zone:
        number = str(best.members) if best.members else "none"
        return f": zone {_short(best.zone)} has room for {number}"
    if not best.members:
        return ": none fits now"
    return f": {best.members} {'fits' if best.members == 1 else 'fit'} now"


def _helps(gang: GangFacts) -> str:
    """Return when it starts; nothing if no smaller part of it fits."""
    best = gang.rooms[0].members if gang.rooms else 0
    missing = gang.minimum - gang.bound - best
    if not best or missing <= 0 or gang.bound:
        return ""
    where = f" in zone {_short(gang.rooms[0].zone)}" if gang.rooms[0].zone else ""
    lower = f", or with a minimum of {best}" if len(gang.shapes) == 1 else ""
    return f" It starts when {missing} more {'fits' if missing == 1 else 'fit'}{where}{lower}."


def _starting(gang: GangFacts) -> str:
    text = f"Starting: {gang.bound} of {gang.minimum} bound."
    if gang.stranded:
        text += (
            f" No node that {counted(gang.stranded, 'member')} may start on takes "
            f"{'it' if gang.stranded == 1 else 'them'}: `gpushare explain pod` shows why."
        )
    if gang.complete_seconds and gang.starting_seconds >= LATE_SECONDS:
        left = short(max(0.0, gang.complete_seconds - gang.starting_seconds))
        text += f" If not all are bound in {left}, the bound ones are evicted and it starts over."
    return text


def _placed(gang: GangFacts) -> str:
    if gang.members < gang.minimum:
        ended = gang.minimum - gang.members
        return (
            f"Placed: {gang.bound} of {gang.minimum} still run; {ended} {_have(ended)} ended or "
            f"{'was' if ended == 1 else 'were'} deleted."
        )
    text = f"Placed: {gang.bound} of {gang.members}"
    if gang.members > gang.minimum:
        text += f", at least {gang.minimum}"
    left = gang.members - gang.bound
    if left:
        one = f"The other {left}" if left > 1 else "The other one"
        text += f". {one} {_do(left, 'start')} one by one as room becomes free"
    return f"{text}."


def _broken(gang: GangFacts) -> str:
    limit = f" within {short(gang.complete_seconds)}" if gang.complete_seconds else ""
    text = f"Broken: not all {gang.minimum} were bound{limit}."
    if gang.bound > gang.bare:
        text += " The bound ones are evicted, and the gang starts over with their successors."
    if gang.bare:
        text += (
            f" {counted(gang.bare, 'bound pod')} {_have(gang.bare)} no controller and "
            f"{'is' if gang.bare == 1 else 'are'} not evicted: delete "
            f"{'it' if gang.bare == 1 else 'them'}, and create the gang again."
        )
    return text


_PHASES: Final = {
    Phase.WAITING_FOR_MEMBERS: _members,
    Phase.INVALID: _invalid,
    Phase.WAITING_FOR_ROOM: _room,
    Phase.STARTING: _starting,
    Phase.PLACED: _placed,
    Phase.BROKEN: _broken,
}


def _have(number: int) -> str:
    return "has" if number == 1 else "have"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _do(number: int, verb: str) -> str:
    return f"{verb}s" if number == 1 else verb


def _and(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _listed(names: Sequence[str]) -> str:
    shown = [_short(name) for name in names[:SHAPES_SAID]]
    left = len(names) - len(shown)
    return ", ".join(shown) + (f" and {left} more" if left else "")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _short(text: str, most: int = _MOST_OF_NAME) -> str:
    return _cut(text, most)


def _cut(text: str, most: int) -> str:
    """Return at most so many bytes of a text, with ``...`` if some are missing."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= most:
        return text
    return encoded[: most - 3].decode(errors="ignore") + "..."
