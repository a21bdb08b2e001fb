"""Count the units of every card at every moment of a watch history."""

from collections.abc import Iterable, Mapping

from tests.cluster.history import RESOURCE, Change

CARDS = "gpushare.aliyun.com/cards"


def asked(change: Change) -> int:
    """Return the units of a pod: the sum of its containers."""
    limits = (
        each.get("resources", {}).get("limits", {}) for each in change.pod["spec"]["containers"]
    )
    return sum(int(each.get(RESOURCE, 0)) for each in limits)


def wrong_moments(changes: Iterable[Change], sizes: Mapping[str, int]) -> list[str]:
    """Return each change after which a card was overbooked, or a pod bound without cards.

    ``sizes`` are units by UUID. A pod uses its cards from its binding until its end.
    """
    holds: dict[str, tuple[str, ...]] = {}
    held: dict[str, int] = dict.fromkeys(sizes, 0)
    found = []
    for change in changes:
        units = asked(change)
        if not units:
            continue
        is_held = bool(change.node) and not change.has_ended
        uuids = tuple(filter(None, change.annotations.get(CARDS, "").split(",")))
        if is_held and not uuids:
            found.append(f"{change.name} is bound to {change.node} without cards")
        before, now = holds.get(change.uid, ()), uuids if is_held else ()
        if before == now:
            continue
        for uuid in before:
            held[uuid] -= units // len(before)
        for uuid in now:
            held[uuid] = held.get(uuid, 0) + units // len(now)
            if held[uuid] > sizes.get(uuid, 0):
                found.append(f"{change.name}: {uuid} holds {held[uuid]} of {sizes.get(uuid, 0)}")
        holds[change.uid] = now
    return found


def held_now(pods: Iterable[Mapping[str, object]]) -> dict[str, int]:
    """Return the units by UUID of a list of all pods, which the ledger must equal."""
    held: dict[str, int] = {}
    for each in pods:
        change = Change("LISTED", dict(each))
        uuids = change.annotations.get(CARDS, "").split(",")
        if change.node and not change.has_ended and asked(change):
            for uuid in uuids:
                held[uuid] = held.get(uuid, 0) + asked(change) // len(uuids)
    return held
