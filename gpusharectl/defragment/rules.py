"""What is asked for, and the plan for it as it is shown (pure)."""

from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from gpushare.annotations.mistaken_names import hint
from gpushare.annotations.pod_annotations import asks_for_share
from gpushare.answers.what_if import PlaceView, not_checked
from gpushare.contract import RESOURCE_MEMORY
from gpushare.defragment import planner
from gpushare.defragment.model import Move, MovePlan, Place
from gpushare.defragment.movable import Movables
from gpushare.errors import RequestError, SettingsError
from gpushare.groups.group import Group
from gpushare.groups.index import Groups
from gpushare.groups.sources import key_of
from gpushare.objects.model import Pod
from gpushare.placement.trial import World
from gpushare.planning.ask import Ask
from gpushare.planning.waiting import ask_of
from gpushare.text.counted import counted
from gpusharectl.terminal.exits import No

UNKNOWN: Final = (
    "what only the extender knows: reservations, quotas (gpushare.aliyun.com/quota), its settings",
    "kube-scheduler decides where the pods go that replace those that move",
)
NO_MEMBERS_WITHOUT_MEMORY: Final = "members of the gang that request no GPU memory"


@dataclass(frozen=True, slots=True)
class Goal:
    """``cards`` more whole cards, or room for the pods of ``ask``; ``what`` names it."""

    what: str
    cards: int = 0
    ask: Ask | None = None

    @property
    def asked(self) -> int:
        return self.cards if self.ask is None else self.ask.least


class CardView(msgspec.Struct):
    node: str
    card: int
    uuid: str


class Where(msgspec.Struct):
    """``cards`` are indexes."""

    node: str
    cards: list[int]
    uuids: list[str]


class MoveView(msgspec.Struct):
    """A pod to evict; ``units`` of each of its cards."""

    namespace: str
    name: str
    uid: str
    units: int
    leaves: Where = msgspec.field(name="from")
    to: Where


class Answer(msgspec.Struct, rename="camel"):
    """``moves`` in their order, after which there is what was ``asked`` for if it ``is_enough``.

    ``freed`` are the GPUs that are free then and not now, ``places`` those of Pending pods.
    ``not_movable`` counts pods by the reason. ``gave_up``: the search ended early.
    """

    goal: str
    is_enough: bool = msgspec.field(name="enough")
    asked: int
    moves: list[MoveView]
    freed: list[CardView]
    places: list[PlaceView]
    movable: int
    not_movable: dict[str, int]
    gave_up: bool
    not_checked: list[str]
    unit_mib: int = msgspec.field(name="unitMiB")


def name_of(text: str, namespace: str) -> tuple[str, str]:
    """Return namespace and name of ``NAME`` or ``NAMESPACE/NAME``; SettingsError for others."""
    before, slash, name = text.rpartition("/")
    if not name or "/" in before or (slash and not before):
        raise SettingsError(f"{text!r} is not a pod: write NAME or NAMESPACE/NAME")
    return before or namespace, name


def goal_of(pods: Iterable[Pod], groups: Groups, world: World, namespace: str, name: str) -> Goal:
    """Return the goal that a Pending pod, or its whole gang, has room.

    ``name`` is that of a pod, of a gang, or of any of its members. No if nothing of this name
    waits.
    """
    key = f"{namespace}/{name}"
    pod = next((each for each in pods if each.key == key and not each.is_terminal), None)
    if pod is None or key_of(pod) is not None:
        group = groups.of(pod.uid) if pod is not None else _named(groups, namespace, name)
        if group is None:
            raise No(f"no Pending pod and no gang {name} in namespace {namespace}")
        return _gang(group, world)
    if pod.node:
        raise No(f"pod {key} is bound to {pod.node} already")
    if not asks_for_share(pod):
        raise No(f"pod {key} does not request {RESOURCE_MEMORY}{hint(pod)}")
    return Goal(f"pod {key}", ask=Ask(pod.uid, (pod,), 1))


def _named(groups: Groups, namespace: str, name: str) -> Group | None:
    keys = ((each.key.namespace, each.key.name) for each in groups)
    return next((g for key, g in zip(keys, groups, strict=True) if key == (namespace, name)), None)


def _gang(group: Group, world: World) -> Goal:
    what = f"gang {group.key.namespace}/{group.key.name}"
    if group.problem is not None:
        raise No(f"{what} cannot be placed: {group.problem.text}")
    ask = ask_of(group, world)
    if ask.least <= 0:
        raise No(f"{what} has its minimum of {group.minimum} bound pods already")
    if len(ask.members) < ask.least:
        raise No(f"{what} has {group.count} of the {group.minimum} pods that it needs")
    return Goal(what, ask=ask)


def plan_of(world: World, goal: Goal, movables: Movables) -> Generator[None, None, MovePlan]:
    """Return the plan for a goal, in short steps; No if a pod asks for what no node can grant."""
    if goal.ask is None:
        return (yield from planner.free_cards(world, goal.cards, movables.pods))
    try:
        return (yield from planner.make_room(world, goal.ask, movables.pods))
    except RequestError as err:
        raise No(f"no node can ever grant what {goal.what} requests: {err}") from err


def view(world: World, goal: Goal, plan: MovePlan, movables: Movables) -> Answer:
    """Return a plan as it is shown."""
    counts = Counter(each.place for each in plan.wanted)
    return Answer(
        goal=goal.what,
        is_enough=plan.is_enough,
        asked=goal.asked,
        moves=[_move(world, each) for each in plan.moves],
        freed=[CardView(node, index_of(world, node, uuid), uuid) for node, uuid in plan.freed],
        places=[
            PlaceView(place.node, where(world, place).cards, list(place.cards), number)
            for place, number in counts.items()
        ],
        movable=len(movables.pods),
        not_movable=dict(sorted(movables.others.items(), key=lambda each: (-each[1], each[0]))),
        gave_up=plan.gave_up,
        not_checked=_unchecked(goal),
        unit_mib=world.unit_mib,
    )


def where(world: World, place: Place) -> Where:
    cards = [index_of(world, place.node, uuid) for uuid in place.cards]
    return Where(place.node, cards, list(place.cards))


def index_of(world: World, node: str, uuid: str) -> int:
    """Return the index of a card that the node has or had; -1 if it has none of this UUID now."""
    inventory = world.ledger.inventory(node)
    card = inventory.by_uuid(uuid) if inventory is not None else None
    return card.index if card is not None else -1


def _move(world: World, move: Move) -> MoveView:
    meta, share = move.movable.pod.metadata, move.movable.share
    leaves, to = where(world, move.movable.place), where(world, move.to)
    return MoveView(meta.namespace, meta.name, meta.uid, share.units, leaves, to)


def _unchecked(goal: Goal) -> list[str]:
    members = goal.ask.members if goal.ask is not None else ()
    found: Mapping[str, None] = {text: None for pod in members for text in not_checked(pod, None)}
    without = [NO_MEMBERS_WITHOUT_MEMORY] if not all(map(asks_for_share, members)) else []
    return [*without, *found, *UNKNOWN]


def title(answer: Answer) -> str:
    """Return in a sentence whether and how the goal is reached."""
    moves = counted(len(answer.moves), "move")
    if answer.places or (not answer.is_enough and not answer.freed):
        return _of_pods(answer, moves)
    number = counted(len(answer.freed), "GPU")
    if answer.is_enough:
        return f"{number} would become free with {moves}"
    return f"only {number} of {answer.asked} would become free, with {moves}"


def _of_pods(answer: Answer, moves: str) -> str:
    if not answer.is_enough:
        return f"no moves were found for {answer.goal}"
    return f"{answer.goal} would fit after {moves}" if answer.moves else f"{answer.goal} fits now"
