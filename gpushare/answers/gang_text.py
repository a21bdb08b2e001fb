"""Write in one sentence, or a few, where a gang is on its way and what would help (pure)."""

import datetime as dt
from collections.abc import Sequence
from typing import Final

from gpushare.answers import preemptions
from gpushare.answers.gangs import GangFacts, GangView, Phase, Shape
from gpushare.answers.queue import over_quota
from gpushare.contract import GATE_ADMISSION
from gpushare.groups import reasons as problems
from gpushare.groups.model import MOST_MEMBERS, Source
from gpushare.planning import reasons
from gpushare.planning.ask import NoPlan, ZoneRoom
from gpushare.planning.work import MOST_WORK
from gpushare.text.amounts import needed_gib
from gpushare.text.counted import counted
from gpushare.text.cut import cut, cut_name
from gpushare.text.durations import short
from gpushare.text.listed import all_of, listed

MOST_BYTES: Final = 600  # in an Event the sentence about the pod follows
PHASES_OF_EVICTIONS: Final = frozenset({Phase.WAITING_FOR_ROOM, Phase.STARTING})
LATE_SECONDS: Final = 60.0  # of starting, until the sentence says what will happen
GATES_STAY: Final = (
    f"Nothing removes the scheduling gate {GATE_ADMISSION}: the extender may not patch pods. "
    "`gpushare doctor` says what to do."
)
_LISTED: Final = 3  # shapes, gates
_MOST_OF_TEXT: Final = 300

# Where the minimum is written.
_MINIMUM: Final = {
    Source.NATIVE: "minCount of its PodGroup",
    Source.POD_GROUP: "minMember of its PodGroup",
    Source.LABELS: "the label pod-group.scheduling.sigs.k8s.io/min-available of all its pods",
    Source.KUEUE: "the annotation kueue.x-k8s.io/pod-group-total-count of all its pods",
}

# What each kind of controller waits for, and what to write.
_WAITS_FOR_READY: Final = {
    "StatefulSet": (
        "creates its next pod only when the last one is Ready. Create it again with "
        "podManagementPolicy: Parallel."
    ),
    "LeaderWorkerSet": (
        "creates the workers only when the leader is Ready. Set startupPolicy: LeaderCreated."
    ),
    "MPIJob": (
        "creates the launcher only when the workers are Ready. Create it again with "
        "launcherCreationPolicy: AtStartup."
    ),
}


def view(gang: GangFacts, now: float) -> GangView:
    """Return a gang as JSON, with its sentence; ``now`` is in seconds since 1970."""
    return GangView(
        namespace=gang.key.namespace,
        name=gang.key.name,
        source=gang.key.source.value,
        minimum=0 if gang.problem in _WITHOUT_MINIMUM else gang.minimum,
        members=gang.members,
        bound=gang.bound,
        slots=gang.slots,
        gated=gang.gated,
        phase=gang.phase.value,
        zone_key=gang.zone_key,
        zone=gang.zone,
        created=gang.created,
        age_seconds=_age(gang.created, now),
        priority=gang.priority,
        text=sentence(gang),
    )


def sentence(gang: GangFacts) -> str:
    """Return what people are told about a gang, at most MOST_BYTES."""
    text = _PHASES[gang.phase](gang)
    return cut(f"{text} {GATES_STAY}" if gang.gates_stay else text, MOST_BYTES)


def shapes_text(shapes: Sequence[Shape]) -> str:
    """Return ``8 x 20 GiB``, or ``4 x 20 GiB and 4 x 10 GiB``; the largest first."""
    ordered = sorted(shapes, key=lambda each: (-each.mib * each.gpus, -each.mib, -each.pods))
    said = [_shape(each) for each in ordered[:_LISTED]]
    if left := ordered[_LISTED:]:
        pods = counted(sum(each.pods for each in left), "pod")
        said.append(f"{pods} of {counted(len(left), 'other size')}")
    return all_of(said)


def _shape(shape: Shape) -> str:
    if not shape.mib:
        return f"{counted(shape.pods, 'pod')} without GPU memory"
    amount = needed_gib(shape.mib)
    if shape.gpus == 1:
        return f"{shape.pods} x {amount}"
    return f"{shape.pods} x {shape.gpus} GPUs with {amount} on each"


def _members(gang: GangFacts) -> str:
    missing = gang.minimum - gang.members
    text = f"Waiting for {missing} of {counted(gang.minimum, 'member')}"
    foreign = sum(gang.foreign_gates.values())
    if not foreign:
        text += f"; {gang.members or 'none'} {_verb(max(1, gang.members), 'exist', 'exists')}."
    else:
        gates = [cut_name(each) for each in sorted(gang.foreign_gates)]
        text += (
            f". {counted(foreign, 'pod')} {_verb(foreign, 'count', 'counts')} once the scheduling "
            f"gates of others are removed: {listed(gates, _LISTED)}."
        )
    if gang.waits_for_ready:
        text += (
            f" Likely cause: its {gang.waits_for_ready} {_WAITS_FOR_READY[gang.waits_for_ready]}"
        )
    if foreign < missing:
        text += f" If no more pods are to come, lower {_MINIMUM[gang.key.source]}."
    return text


def _invalid(gang: GangFacts) -> str:
    text = cut(gang.problem.text, _MOST_OF_TEXT) if gang.problem is not None else "unknown problem"
    more = _WHAT_TO_WRITE.get(gang.problem, "") if gang.problem is not None else ""
    return f"It cannot start: {text.rstrip('.')}.{more}"


def _evicting(gang: GangFacts) -> str:
    """Return what is evicted for it, without names: who reads it may not see other namespaces."""
    if gang.evicting is None:
        return ""
    text = preemptions.text(preemptions.without_details(gang.evicting))
    return f"{text[0].upper()}{text[1:]}"


def _room(gang: GangFacts) -> str:
    if gang.evicting is not None:
        return _evicting(gang)
    more = _helps(gang, gang.no_plan) if gang.no_plan is not None else ""
    return f"{_no_room(gang)}{more}{_retry(gang)}"


def _no_room(gang: GangFacts) -> str:
    found = gang.no_plan
    if gang.over_quota is not None:
        text = over_quota.sentence(gang.over_quota)
        return f"{text[0].upper()}{text[1:]}"
    if found is not None and found.reason in _OTHER_REASONS:
        return _OTHER_REASONS[found.reason].format(key=gang.zone_key)
    asked, more = _asked(gang), ""
    if found is None:
        text = f"Waiting for a plan for {asked}"
    elif found.gave_up:
        text = f"No way was found to place {asked} together"
        more = " The search was given up, and is repeated at the next change."
    elif gang.zone:
        text = f"Zone {cut_name(gang.zone)} has no room for {asked}"
    elif gang.zone_key:
        text = f"No zone has room for {asked}"
    else:
        text = f"No room for {asked}{' together' if sum(s.pods for s in gang.shapes) > 1 else ''}"
    if gang.bound:
        text += f" in addition to its {counted(gang.bound, 'bound member')}"
    if found is not None and not found.gave_up:
        text += _fitting(gang, found)
    return f"{text}.{more}"


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


def _fitting(gang: GangFacts, found: NoPlan) -> str:
    if not found.rooms:
        return ""
    best = found.rooms[0]
    if best.zone and not gang.zone:
        return f": zone {cut_name(best.zone)} has room for {best.sharing or 'none'}"
    if not best.sharing:
        return ": none fits now; `gpushare explain pod` shows why"
    return f": {best.sharing} {_verb(best.sharing, 'fit', 'fits')} now"


def _helps(gang: GangFacts, found: NoPlan) -> str:
    """Return when it starts; nothing if no part of it fits now, or room is not what it lacks."""
    best = found.rooms[0] if found.rooms else ZoneRoom("", 0)
    missing = gang.minimum - gang.bound - best.members
    is_other = found.gave_up or found.reason in _OTHER_REASONS or gang.over_quota is not None
    if is_other or not best.sharing or missing <= 0:
        return ""
    where = f" in zone {cut_name(best.zone)}" if best.zone else ""
    lower = f", or with a minimum of {gang.bound + best.members}" if len(gang.shapes) == 1 else ""
    return f" It starts when {missing} more {_verb(missing, 'fit', 'fits')}{where}{lower}."


def _retry(gang: GangFacts) -> str:
    return f" It is tried again in {short(gang.retry_seconds)}." if gang.retry_seconds >= 1 else ""


def _starting(gang: GangFacts) -> str:
    text = f"Starting: {gang.bound} of {gang.minimum} bound."
    if gang.evicting is not None:
        text += f" {_evicting(gang)}"
    elif gang.no_plan is not None:
        text += f" {_no_room(gang)}"
    if gang.stranded:
        text += (
            f" {counted(gang.stranded, 'member')} {_verb(gang.stranded, 'find', 'finds')} no "
            "node: `gpushare explain pod` shows why."
        )
    if gang.complete_seconds and gang.starting_seconds >= LATE_SECONDS:
        left = short(gang.complete_seconds - gang.starting_seconds)
        text += f" If not all are bound in {left}, the bound ones are evicted and it starts over."
    return text


def _placed(gang: GangFacts) -> str:
    if gang.ending:
        are = _verb(gang.ending, "are", "is")
        return f"Placed: its {counted(gang.ending, 'pod')} {are} being deleted."
    if gang.members < gang.minimum:
        gone = gang.minimum - gang.members
        return (
            f"Placed: {gang.members} of {gang.minimum} are left, {gone} ended or "
            f"{_verb(gone, 'were', 'was')} deleted."
        )
    text = f"Placed: {gang.bound} of {gang.members}"
    if gang.members > gang.minimum:
        text += f", at least {gang.minimum}"
    if left := gang.members - gang.bound:
        other = f"The other {left} start" if left > 1 else "The other one starts"
        text += f". {other} when there is room"
    return f"{text}."


def _broken(gang: GangFacts) -> str:
    limit = f" within {short(gang.complete_seconds)}" if gang.complete_seconds else ""
    text = f"Broken: it did not have {counted(gang.minimum, 'bound member')}{limit}."
    if gang.bound > gang.bare:
        text += " The bound members are evicted, and it starts over with their successors."
    if gang.bare:
        text += (
            f" {counted(gang.bare, 'bound member')} {_verb(gang.bare, 'have', 'has')} no "
            f"controller and {_verb(gang.bare, 'are', 'is')} not evicted: delete "
            f"{_verb(gang.bare, 'them', 'it')}, and create the gang again."
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

_WITHOUT_MINIMUM: Final = {
    problems.NO_POD_GROUP,
    problems.NOT_SERVED,
    problems.NOT_READABLE,
    problems.NOT_LISTED,
    problems.WRONG_POD_GROUP,
    problems.NO_MINIMUM,
    problems.WRONG_MINIMUM,
    problems.NO_COUNT,
    problems.WRONG_COUNT,
}
_FROM_ONE: Final = f"a number from 1 to {MOST_MEMBERS}"
# What the problem does not say.
_WHAT_TO_WRITE: Final = {
    problems.WRONG_POD_GROUP: f" Write {_FROM_ONE} there (minMember, or minCount).",
    problems.WRONG_MINIMUM: f" Write {_FROM_ONE}.",
    problems.WRONG_COUNT: f" Write {_FROM_ONE}.",
    problems.TOO_MANY: f" Use at most {MOST_MEMBERS}, or several gangs.",
}

_OTHER_REASONS: Final = {
    reasons.NO_ZONES: (
        "No node that its members may use has the label {key}, whose value they have to share: "
        "label the nodes, or name another label in gpushare.aliyun.com/gang-zone."
    ),
    reasons.NO_ROLE: (
        "No zone is for gangs that use this number of GPUs: change the gang, or the zones' roles "
        "in the extender's configuration."
    ),
    reasons.TOO_MANY_KINDS: (
        "Its members differ too much to be planned together: the number of their kinds (requests, "
        f"node selectors, affinity, tolerations) times that of nodes may be {MOST_WORK:,} at most; "
        "if they have to share a zone, zones count as nodes too. Give the members equal requests "
        "and node selectors, or split the gang."
    ),
    reasons.UNREADABLE_MEMBER: (
        "A member requests what no node can satisfy: `gpushare explain pod` shows for each what "
        "to change."
    ),
}


def _age(created: str, now: float) -> float:
    try:
        return round(max(0.0, now - dt.datetime.fromisoformat(created).timestamp()), 1)
    except ValueError:
        return 0.0


def _verb(number: int, many: str, one: str) -> str:
    return one if number == 1 else many
