"""what-if: the JSON of the question and of its answer (pure)."""

from collections import Counter
from collections.abc import Generator
from typing import Annotated, Final

import msgspec

from gpushare.cards.model import Card
from gpushare.errors import RequestError
from gpushare.objects.model import Pod
from gpushare.objects.pod_reader import read_pod
from gpushare.objects.scheduling import Present
from gpushare.placement.trial import Outlook, World, look

MOST_PODS: Final = 1000
MAX_BODY: Final = 2**20  # the API server takes no larger object

ALWAYS: Final = (
    "required anti-affinity of other pods",
    "resource quota, admission and pod defaults of the namespace",
    "pods that are Pending already and would be scheduled first",
    "nodes that get no new pods for a while because bindings just failed there",
)
BUDGETS: Final = "PodDisruptionBudgets of the pods to evict"
UNREAD: Final = "volumes, resource claims and host ports of the pod"


class Question(msgspec.Struct):
    """A pod as it would be created, and how many of them."""

    pod: Pod
    count: int = 1


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    pod: msgspec.Raw
    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_PODS)] = 1


class _Port(msgspec.Struct, rename="camel"):
    host_port: int | None = None


class _Container(msgspec.Struct):
    ports: list[_Port] | None = None


class _Spec(msgspec.Struct, rename="camel"):
    """Fields that decide too; only their presence is read."""

    priority_class_name: str | None = None
    volumes: list[Present] | None = None
    resource_claims: list[Present] | None = None
    containers: list[_Container] | None = None


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


class Answer(msgspec.Struct, rename="camel"):
    """``fitting`` of ``asked`` pods have ``places``.

    ``reasons`` to number of nodes: why the next pod would not fit there. ``would_have_to_go``: the
    fewest pods of lower priority whose eviction would make room for one more. A ``gang`` fits if
    its minimum does; it has neither of the two.
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


_decode_body: Final = msgspec.json.Decoder(_Body).decode
read_extras: Final = msgspec.json.Decoder(Extras).decode


def read_question(body: bytes) -> Question:
    """Decode the question in a body; raises one of UNDECODABLE."""
    found = _decode_body(body)
    try:
        return Question(read_pod(found.pod), found.count)
    except msgspec.ValidationError as err:
        text = str(err) if "`$" in str(err) else f"{err} - at `$`"
        raise msgspec.ValidationError(text.replace("`$", "`$.pod")) from err


def answer(
    world: World, question: Question, extras: Extras | None = None
) -> Generator[None, None, Answer]:
    """Answer a question in short steps. Without ``extras`` less is known about the pod."""
    try:
        outlook = yield from look(world, question.pod, question.count)
    except RequestError as err:
        outlook = Outlook((), {str(err): len(world.node_names())}, None)
    counted = Counter((place.node, place.cards) for place in outlook.places)
    eviction, found = None, outlook.eviction
    if found is not None:
        victims = [
            VictimView(
                each.share.namespace,
                each.share.name,
                each.pod.uid,
                each.share.units,
                each.pod.priority,
                each.pod.metadata.deletion_timestamp is not None,
            )
            for each in found.victims
        ]
        eviction = EvictionView(found.node, *_names(found.cards), victims)
    return Answer(
        fits=len(outlook.places) == question.count,
        asked=question.count,
        fitting=len(outlook.places),
        places=[PlaceView(node, *_names(cards), pods) for (node, cards), pods in counted.items()],
        reasons=outlook.reasons,
        would_have_to_go=eviction,
        not_checked=[*not_checked(question.pod, extras), BUDGETS],
        unit_mib=world.unit_mib,
    )


def not_checked(pod: Pod, extras: Extras | None) -> list[str]:
    """List what may still keep the pod Pending: what is never checked, and what the pod names."""
    spec, more = pod.spec, extras.pod.spec if extras is not None else _Spec()
    affinity = spec.affinity
    ports = [port for each in more.containers or () for port in each.ports or ()]
    named = {
        "affinity between pods": affinity
        and (affinity.pod_affinity is not None or affinity.pod_anti_affinity is not None),
        "topology spread": spec.topology_spread_constraints,
        "volumes": more.volumes,
        "resource claims": more.resource_claims,
        "host ports": any(port.host_port for port in ports),
        "scheduling gates": spec.scheduling_gates,
        "priorityClassName: write spec.priority, 0 was assumed": more.priority_class_name
        and spec.priority is None,
    }
    found = [text for text, is_there in named.items() if is_there]
    unread = [UNREAD] if extras is None else []
    return [*found, *unread, *ALWAYS]


def _names(cards: tuple[Card, ...]) -> tuple[list[int], list[str]]:
    return [card.index for card in cards], [card.uuid for card in cards]
