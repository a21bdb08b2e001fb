"""Write where a pod or gang is in the queue, and what it waits for if not for room (pure)."""

from typing import Final

from gpushare.answers.queue.entries import Claim, QueuePlace, Why
from gpushare.text.durations import short

RESTING: Final = "it had room and did not use it in time."
NO_ROOM: Final = "no GPU has room for it now; `gpushare explain pod` shows why."
NEVER_FITS: Final = (
    "A member requests what no node can grant: `gpushare explain pod` shows what to change."
)
AUTOSCALED: Final = "An autoscaler may add a node for it."
OTHER_GATE: Final = (
    "it gets a position when the scheduling gates of others are removed; see `gpushare explain "
    "pod`."
)

_MOST_NODES: Final = 3

# After ``It has``, or ``Its gang has``.
_WITHOUT_POSITION: Final = {
    Why.STARTING: "left the queue.",
    Why.RESTING: "no position in the queue: it had room and did not use it in time.",
    Why.OTHER_GATE: ("no position in the queue until the scheduling gates of others are removed."),
    Why.MEMBERS: "no position in the queue until it has enough members.",
    Why.INVALID: "no position in the queue: it cannot start as it is.",
    Why.BROKEN: "no position in the queue: it starts over when its bound members are gone.",
}


def behind(position: int) -> str:
    """Return why a pod or gang must not pass the one at ``position``; 0 if that is not known."""
    first = f"the pod or gang at position {position}" if position else "an earlier pod or gang"
    return f"{first} has no room, and nothing may pass it (queue.backfill is false)."


def claim(found: Claim) -> str:
    """Return what is claimed for a pod or gang, and until when it waits."""
    nodes = ", ".join(found.nodes[:_MOST_NODES])
    where = f" on {nodes}" if nodes else ""
    if len(found.nodes) > _MOST_NODES:
        where += f" and {len(found.nodes) - _MOST_NODES} more nodes"
    text = f"GPUs{where} have been claimed for it for {short(found.seconds)}"
    if not found.pods:
        return f"{text}."
    end = "the pod that uses" if found.pods == 1 else f"the {found.pods} pods that use"
    has = "has" if found.pods == 1 else "have"
    return f"{text}: it starts when {end} them {has} ended."


def resting(seconds: float) -> str:
    """Return when a pod or gang that did not use its room is tried again."""
    return f"It is tried again in {short(seconds)}."


def position(found: QueuePlace, more: str = "") -> str:
    """Return the position as a sentence, followed by ``more``; or why there is none."""
    who = "Its gang" if found.kind == "Gang" else "It"
    if found.place:
        begin = "Its gang has position" if found.kind == "Gang" else "Position"
        text = (
            f"{begin} {found.place} of {found.length} in the queue, for "
            f"{short(found.waiting_seconds)}."
        )
    else:
        text = f"{who} has {_WITHOUT_POSITION.get(Why(found.reason), 'no position in the queue.')}"
    return f"{text} {more}".rstrip()
