"""what-if: the JSON of the question and of its answer (pure)."""

from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from gpushare.answers.placed_copies import WithCopies
from gpushare.cards.model import Card
from gpushare.errors import RequestError
from gpushare.ledger.holds import Slot
from gpushare.objects.model import Pod
from gpushare.objects.pod_reader import read_pod
from gpushare.objects.pod_requests import foreign_resources
from gpushare.objects.scheduling import Present
from gpushare.placement.trial import Outlook, Place, World, look
from gpushare.planning.ask import Ask, Plan
from gpushare.preemption.model import Preemption, PreemptionWorld, Rules
from gpushare.preemption.search import VictimSearch

MOST_PODS: Final = 1000
MAX_BODY: Final = 2**20  # the API server takes no larger object

ALWAYS: Final = (
    "required anti-affinity of other pods",
    "ResourceQuotas, admission and pod defaults of the namespace",
    "pods that are Pending already and would be scheduled first",
    "nodes that get no new pods for a while because bindings just failed there",
)
BUDGETS: Final = "PodDisruptionBudgets of the pods to evict"
OWNER: Final = "what-if"  # of the slots of pods that do not exist
ANY_LOWER: Final = Rules()  # any pod of a lower priority may be evicted
UNREAD: Final = "volumes and resource claims of the pod"


class Question(msgspec.Struct):
    """A pod as it would be created, and how many of them.

    ``evict``: where they would go if pods of lower priority were evicted for them is asked too.
    """

    pod: Pod
    count: int = 1
    evict: bool = False


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    pod: msgspec.Raw
    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_PODS)] = 1
    evict: bool = False


class _Spec(msgspec.Struct, rename="camel"):
    """Fields that decide too; only their presence is read."""

    priority_class_name: str | None = None
    volumes: list[Present] | None = None
    resource_claims: list[Present] | None = None


class _Manifest(msgspec.Struct):
    kind: str = "Pod"
    spec: _Spec = msgspec.field(default_factory=_Spec)


class Extras(msgspec.Struct):
    """The same body, read for what the trial ignores."""

    pod: _Manifest


class PlaceView(msgspec.Struct, rename="camel"):
    """The number of ``pods`` on the same cards; ``cards`` are indexes."""

    node: str
    cards: list[int]
    uuids: list[str]
    pods: int


class VictimView(msgspec.Struct, rename="camel"):
    namespace: str
    name: str
    uid: str
    units: int
    priority: int
    terminating: bool


class EvictionView(msgspec.Struct, rename="camel"):
    node: str
    cards: list[int]
    uuids: list[str]
    pods: list[VictimView]


class EvictionPlan(msgspec.Struct, rename="camel"):
    """The pods that would be evicted, by node, and the ``places`` of all pods after that.

    ``cards`` of an eviction are those that the evicted pods use. Without evictions the pods fit as
    soon as pods have ended that are being deleted.
    """

    evictions: list[EvictionView]
    places: list[PlaceView]


class GangOutlook(msgspec.Struct, rename="camel"):
    """``minimum`` of the pods start together, and ``text`` says for people whether they would.

    ``zone_key`` is the node label whose value they share, if they do; ``zone`` is the value if the
    gang fits.
    """

    name: str
    source: str
    minimum: int
    zone_key: str
    zone: str
    text: str


class QuotaOutlook(msgspec.Struct):
    """The pods need more units than the quota of their namespace leaves, or it permits none.

    ``problem`` says why it permits none at all; empty if only units are missing.
    """

    namespace: str
    left: int
    needed: int
    problem: str = ""


class Answer(msgspec.Struct, rename="camel"):
    """``fitting`` of ``asked`` pods have ``places``.

    ``reasons`` to number of nodes: why the next pod would not fit there. ``would_have_to_go``: the
    pods of lower priority whose eviction would make room for one more, or that are about to end. A
    ``gang`` fits if its minimum does; it has neither of the two. ``by_evicting`` is what would have
    to be evicted for all pods, or a gang's minimum; it is absent if that was not asked, they fit,
    or it does not help. ``quota`` is absent if it permits all pods, or a gang's minimum; otherwise
    they do not fit, whatever is free.
    """

    fits: bool
    asked: int
    fitting: int
    places: list[PlaceView]
    reasons: dict[str, int]
    would_have_to_go: EvictionView | None
    not_checked: list[str]
    unit_mib: int = msgspec.field(name="unitMiB", default=0)
    gang: GangOutlook | None = None
    by_evicting: EvictionPlan | UnsetType = UNSET
    quota: QuotaOutlook | UnsetType = UNSET


_decode_body: Final = msgspec.json.Decoder(_Body).decode
read_extras: Final = msgspec.json.Decoder(Extras).decode


def read_question(body: bytes) -> Question:
    """Decode the question in a body; raises one of UNDECODABLE."""
    found = _decode_body(body)
    try:
        return Question(read_pod(found.pod), found.count, found.evict)
    except msgspec.ValidationError as err:
        text = str(err) if "`$" in str(err) else f"{err} - at `$`"
        raise msgspec.ValidationError(text.replace("`$", "`$.pod")) from err


def answer_with_evictions(
    world: PreemptionWorld,
    question: Question,
    extras: Extras | None = None,
    rules: Rules = ANY_LOWER,
) -> Generator[None, None, Answer]:
    """Answer a question in short steps, also what would be evicted if that is asked.

    ``rules`` say which pods may be evicted.
    """
    found = yield from answer(world, question, extras)
    if question.evict and not found.fits:
        ask = Ask(OWNER, tuple(copies(question.pod, question.count)), question.count)
        found.by_evicting = yield from plan_evictions(world, ask, rules)
    return found


def answer(
    world: PreemptionWorld, question: Question, extras: Extras | None = None
) -> Generator[None, None, Answer]:
    """Answer a question in short steps. Without ``extras`` less is known about the pod."""
    pod, eviction = question.pod, None
    try:
        outlook = yield from look(world, pod, question.count)
        if len(outlook.places) < question.count:
            eviction = yield from _would_have_to_go(world, pod, outlook.places)
    except RequestError as err:
        outlook = Outlook((), {str(err): len(world.node_names())})
    return Answer(
        fits=len(outlook.places) == question.count,
        asked=question.count,
        fitting=len(outlook.places),
        places=views_of(outlook.places),
        reasons=outlook.reasons,
        would_have_to_go=eviction,
        not_checked=[*not_checked(pod, extras), BUDGETS],
        unit_mib=world.unit_mib,
    )


def views_of(places: Iterable[Place]) -> list[PlaceView]:
    """Return how many pods are on the same cards of a node."""
    counted = Counter((place.node, place.cards) for place in places)
    return [PlaceView(node, *_names(cards), pods) for (node, cards), pods in counted.items()]


def copies(pod: Pod, count: int, part: int = 0) -> Iterator[Pod]:
    """Yield pods as they would be created; gates of others are listed as not checked."""
    for number in range(count):
        name = f"{pod.metadata.name or 'pod'}-{part}-{number}"
        meta = replace(pod.metadata, name=name, uid=f"{OWNER}-{part}-{number}")
        yield replace(
            pod, metadata=meta, spec=replace(pod.spec, scheduling_gates=None, node_name=None)
        )


def plan_evictions(
    world: PreemptionWorld, ask: Ask, rules: Rules
) -> Generator[None, None, EvictionPlan | UnsetType]:
    """Return which pods would be evicted so that those asked about fit; UNSET if that cannot be."""
    found = yield from VictimSearch(world).find(ask, rules)
    if not isinstance(found, Preemption):
        return UNSET
    by_node: dict[str, list[Pod]] = {}
    for pod in found.victims:
        by_node.setdefault(pod.node, []).append(pod)
    evictions = [_eviction(world, node, pods) for node, pods in sorted(by_node.items())]
    return EvictionPlan(evictions, places_of(world, found.plan))


def _eviction(world: World, node: str, pods: Sequence[Pod]) -> EvictionView:
    shares = (world.ledger.share(pod.uid) for pod in pods)
    used = {uuid for share in shares if share is not None for uuid in share.cards}
    return EvictionView(node, *_indexes(world, node, used), [_victim(world, pod) for pod in pods])


def _victim(world: World, pod: Pod) -> VictimView:
    share, meta = world.ledger.share(pod.uid), pod.metadata  # no share without GPU memory
    units = share.units if share is not None else 0
    is_terminating = meta.deletion_timestamp is not None
    return VictimView(meta.namespace, meta.name, pod.uid, units, pod.priority, is_terminating)


def places_of(world: World, plan: Plan) -> list[PlaceView]:
    """Return how many pods of a plan would be on the same cards of a node."""
    counted = Counter((slot.node, slot.cards) for slot in plan.slots)
    return [
        PlaceView(node, *_indexes(world, node, uuids), pods)
        for (node, uuids), pods in counted.items()
    ]


def _indexes(world: World, node: str, uuids: Collection[str]) -> tuple[list[int], list[str]]:
    inventory = world.ledger.inventory(node)
    cards = inventory.cards if inventory is not None else ()
    return _names(tuple(card for card in cards if card.uuid in uuids))


def _would_have_to_go(
    world: PreemptionWorld, pod: Pod, places: Sequence[Place]
) -> Generator[None, None, EvictionView | None]:
    """Return who has to go so that one more copy fits, or is about to; None if that is no help."""
    if places:
        world = WithCopies(world, pod, places)
    found = yield from VictimSearch(world).find(Ask(pod.uid or OWNER, (pod,), 1), Rules())
    if not isinstance(found, Preemption):
        return None
    (slot,) = found.plan.slots
    victims = found.victims or _ending(world, slot)
    if not victims:
        return None
    cards = _indexes(world, slot.node, slot.cards)
    return EvictionView(slot.node, *cards, [_victim(world, each) for each in victims])


def _ending(world: PreemptionWorld, slot: Slot) -> Sequence[Pod]:
    """Return the pods that are about to end on the cards of a slot."""
    shares = [share for share in world.ledger.shares(slot.node) if {*share.cards} & {*slot.cards}]
    uids = {share.pod_uid for share in shares if world.will_end(share.pod_uid)}
    return [each for each in world.pods_of(slot.node) if each.uid in uids]


def not_checked(pod: Pod, extras: Extras | None) -> list[str]:
    """List what may still keep the pod Pending: what is never checked, and what the pod names."""
    spec, more = pod.spec, extras.pod.spec if extras is not None else _Spec()
    affinity = spec.affinity
    named = {
        "affinity between pods": affinity
        and (affinity.pod_affinity is not None or affinity.pod_anti_affinity is not None),
        "topology spread": spec.topology_spread_constraints,
        "volumes": more.volumes,
        "resource claims": more.resource_claims,
        "host ports": pod.uses_host_port,
        "requested resources that no node offers": foreign_resources(pod),
        "scheduling gates": spec.scheduling_gates,
        "priorityClassName: write spec.priority, 0 was assumed": more.priority_class_name
        and spec.priority is None,
    }
    found = [text for text, is_there in named.items() if is_there]
    unread = [UNREAD] if extras is None else []
    return [*found, *unread, *ALWAYS]


def _names(cards: tuple[Card, ...]) -> tuple[list[int], list[str]]:
    return [card.index for card in cards], [card.uuid for card in cards]
