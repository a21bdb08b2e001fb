"""Group the members of a gang by shape: what they request, and which nodes may take them (pure)."""

from collections.abc import Generator, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gpushare.annotations.pod_annotations import asks_for_share
from gpushare.cards.model import Request
from gpushare.cards.placement_policy import DEFAULT_POLICY
from gpushare.errors import RequestError
from gpushare.objects.model import Container, Pod
from gpushare.objects.pod_requests import Requests, requests_of
from gpushare.objects.scheduling import FIELD_NAME, NodeSelector
from gpushare.placement.trial import World

PODS_A_STEP: Final = 32

_NO_NODES: Final[frozenset[str]] = frozenset()


class Need(NamedTuple):
    """What one member takes of a node: ``units`` of each of ``card_count`` cards, and ``requests``.

    ``cards`` decides which cards its policy allows (``PlacementPolicy.allowed``). Of members that
    are ``is_apart`` a node takes one.
    """

    requests: Requests
    units: int
    card_count: int
    cards: Hashable
    is_apart: bool


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """Pods with an equal ``key`` fit on the same nodes, as often and in the same order of nodes.

    ``pod`` is any of them. ``request`` is None without GPU memory. ``amounts`` are the requests
    that are more than nothing. ``named`` are the only nodes that the required node affinity allows,
    if it names nodes.
    """

    key: Hashable
    need: Need
    pod: Pod
    request: Request | None
    amounts: Requests
    named: frozenset[str] | None


@dataclass(slots=True, eq=False)
class EqualMembers:
    """The members of one shape that avoid the same nodes, most important first."""

    shape: Shape
    avoid: frozenset[str] = _NO_NODES
    pods: list[Pod] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Parts:
    """What all pods say that have the same parts as ``pod``, which keeps these alive.

    ``shapes`` are those of such pods, by what they request of cards.
    """

    pod: Pod
    asks_for_share: bool
    requests: Requests
    rules: Hashable
    shapes: dict[Hashable, Shape] = field(default_factory=dict)


class Reader:
    """Finds the shape of each pod. Equal parts of pods are often one object, and are read once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._shapes: dict[Hashable, Shape] = {}
        self._parts: dict[Hashable, _Parts] = {}
        self._requests: dict[Hashable, Requests] = {}

    def shape_of(self, pod: Pod) -> Shape:
        """Return the pod's shape; raise RequestError if no node can ever satisfy it."""
        parts = self._parts_of(pod)
        request = self._world.request_of(pod) if parts.asks_for_share else None
        of_cards = request and request.fit_key
        found = parts.shapes.get(of_cards)
        if found is None:
            key = (parts.requests, parts.rules, of_cards)
            found = self._shapes.get(key) or _shape(key, pod, request, parts.requests)
            self._shapes[key] = parts.shapes[of_cards] = found
        return found

    def _parts_of(self, pod: Pod) -> _Parts:
        spec = pod.spec
        amounts = (
            id(spec.overhead),
            id(spec.resources),
            _key_of_containers(spec.containers),
            _key_of_containers(spec.init_containers),
        )
        key = (amounts, id(spec.node_selector), id(spec.affinity), id(spec.tolerations))
        found = self._parts.get(key)
        if found is None:
            requests = self._requests.get(amounts)
            if requests is None:
                requests = self._requests[amounts] = tuple(sorted(requests_of(pod).items()))
            found = self._parts[key] = _Parts(pod, asks_for_share(pod), requests, _rules(pod))
        return found


def grouped(
    reader: Reader, members: Iterable[Pod], avoid: Mapping[str, frozenset[str]]
) -> Generator[None, None, tuple[list[EqualMembers], int]]:
    """Return the members by shape, and the number of those whose requests cannot be satisfied."""
    groups: dict[tuple[Hashable, frozenset[str]], EqualMembers] = {}
    unreadable = 0
    for number, pod in enumerate(members):
        if number % PODS_A_STEP == 0:
            yield
        try:
            shape = reader.shape_of(pod)
        except RequestError:
            unreadable += 1
            continue
        avoided = avoid.get(pod.uid, _NO_NODES)
        group = groups.get((shape.key, avoided))
        if group is None:
            group = groups[shape.key, avoided] = EqualMembers(shape, avoided)
        group.pods.append(pod)
    return list(groups.values()), unreadable


def _shape(key: Hashable, pod: Pod, request: Request | None, requests: Requests) -> Shape:
    amounts = tuple((name, amount) for name, amount in requests if amount > 0)
    required = _required(pod)
    named = _named_by(required) if required is not None else None
    if request is None:
        need = Need(amounts, 0, 0, DEFAULT_POLICY.allowed, pod.keeps_apart)
        return Shape(key, need, pod, None, amounts, named)
    need = Need(
        amounts,
        request.units_per_card,
        request.card_count,
        request.policy.allowed,
        pod.keeps_apart,
    )
    return Shape(key, need, pod, request, amounts, named)


def _key_of_containers(containers: Iterable[Container] | None) -> Hashable:
    if not containers:
        return ()
    return tuple([(id(each.resources), each.restart_policy, each.ports) for each in containers])


def _rules(pod: Pod) -> Hashable:
    """Return what decides about nodes besides resources and cards."""
    selector = tuple(sorted((pod.spec.node_selector or {}).items()))
    return selector, _required(pod), pod.spec.tolerations, pod.keeps_apart


def _required(pod: Pod) -> NodeSelector | None:
    affinity = pod.spec.affinity and pod.spec.affinity.node_affinity
    return affinity.required if affinity else None


def _named_by(selector: NodeSelector) -> frozenset[str] | None:
    """Return the nodes that a selector names; None if one of its terms does not name nodes."""
    found: set[str] = set()
    for term in selector.node_selector_terms or ():
        names = next(
            (
                each.values or ()
                for each in term.match_fields or ()
                if each.key == FIELD_NAME and each.operator == "In"
            ),
            None,
        )
        if names is None:
            return None
        found.update(names)
    return frozenset(found)
