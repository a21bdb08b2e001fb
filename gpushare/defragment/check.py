"""Check whether the rest of a plan can still be made in the cluster as it is now (pure)."""

from collections.abc import Generator

from gpushare.cards.model import Share
from gpushare.defragment.model import Move, MovePlan, Place
from gpushare.defragment.state import State, first_state
from gpushare.placement.trial import World


def why_not(world: World, plan: MovePlan, made: int) -> Generator[None, None, str]:
    """Return why a plan fails after its first ``made`` moves were made; empty if it does not.

    The remaining pods have to be where the plan found them, and need room in its order: where the
    plan has it, or anywhere else, because kube-scheduler decides. Afterwards the plan's cards are
    free, or its Pending pods have room. Cordons that keep these closed must not be in ``world``.
    """
    state = yield from first_state(world)
    for move in plan.moves[made:]:
        yield
        if (why := _make(world, state, move)) != "":
            return why
    for key in plan.freed:
        account = state.account(key.node)
        cards = account.cards if account is not None else ()
        mine = next((each for each in cards if each.card.uuid == key.uuid), None)
        if mine is None or mine.committed:
            return f"GPU {key.uuid} of node {key.node} is not free: another pod uses it"
    for each in plan.wanted:
        yield
        place = state.place_of_wanted(each.shape, each.place.node)
        if place is None:
            return f"{each.pod.key} has no room on {each.place.node}"
        state.put(each.pod, each.shape, place)
    return ""


def takes_free_card(world: World, share: Share, move: Move) -> bool:
    """Return whether the pod that replaces a moved one is alone on a card that was not planned."""
    account = world.ledger.account(share.node)
    planned = move.to.cards if move.to.node == share.node else ()
    return any(
        each.used == share.units and each.card.uuid not in planned
        for each in (account.cards if account is not None else ())
        if each.card.uuid in share.cards
    )


def _make(world: World, state: State, move: Move) -> str:
    """Make a move; return why that is impossible."""
    pod, share = move.movable.pod, world.ledger.share(move.movable.uid)
    if share is None or Place(share.node, share.cards) != move.movable.place:
        return f"{pod.key} has ended, or is on other GPUs"
    state.remove(move.movable)
    after = state.copy()
    after.close(move.closed)
    anywhere = sorted(world.node_names())
    places = (after.place_of(move.movable, node) for node in (move.to.node, *anywhere))
    place = next((each for each in places if each is not None), None)
    if place is None:
        return f"no GPU has room for another pod like {pod.key}"
    state.put(pod, move.movable.shape, place)
    return ""
