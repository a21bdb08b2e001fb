"""Write where something is in the queue, and what it waits for besides room (pure)."""

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
    "it gets a place once the scheduling gates of others are removed; see `gpushare explain pod`."
)

_MOST_NODES: Final = 3

_WITHOUT_PLACE: Final = {
    Why.STARTING: "{it} has left, and room is kept for it.",
    Why.RESTING: "{it} had room and did not use it in time.",
    Why.OTHER_GATE: "{it} gets one once the scheduling gates of others are removed.",
    Why.MEMBERS: "{it} gets one once it has enough members.",
    Why.INVALID: "{it} cannot start as it is.",
    Why.BROKEN: "{it} starts over once its bound members are gone.",
}


def behind(place: int) -> str:
    """Return why an entry waits that must not pass the one at ``place``; 0 if that is unknown."""
    first = f"the entry at place {place}" if place else "an earlier entry"
    return f"{first} has no room, and nothing may pass it (queue.backfill is false)."


def claim(found: Claim) -> str:
    """Return what is kept for an entry, and until when it waits."""
    nodes = ", ".join(found.nodes[:_MOST_NODES])
    where = f" on {nodes}" if nodes else ""
    if len(found.nodes) > _MOST_NODES:
        where += f" and {len(found.nodes) - _MOST_NODES} more nodes"
    text = f"For {short(found.seconds)} now, GPUs{where} are kept for it as they become free"
    if not found.pods:
        return f"{text}."
    end = "the pod that uses" if found.pods == 1 else f"the {found.pods} pods that use"
    has = "has" if found.pods == 1 else "have"
    return f"{text}: it starts when {end} them {has} ended."


def resting(seconds: float) -> str:
    """Return when an entry is tried again that had room and did not use it."""
    return f"It is tried again in {short(seconds)}."


def place(found: QueuePlace, more: str = "") -> str:
    """Return a place as a sentence, followed by ``more``; or why there is none."""
    subject = "its gang" if found.kind == "Gang" else "it"
    if found.place:
        begin = "Its gang has place" if found.kind == "Gang" else "Place"
        text = (
            f"{begin} {found.place} of {found.length} in the queue, for "
            f"{short(found.waiting_seconds)}."
        )
    else:
        text = f"No place in the queue: {_without(found).format(it=subject)}"
    return f"{text} {more}".rstrip()


def _without(found: QueuePlace) -> str:
    return _WITHOUT_PLACE.get(Why(found.reason), "{it} does not wait there.")
