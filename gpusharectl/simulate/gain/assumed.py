"""Place pods with whole GPUs again, as if they requested memory (pure)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from gpushare.contract import ANNOTATION_CARD_MODELS, LABEL_CARD_COUNT, RESOURCE_MEMORY
from gpushare.errors import RequestError
from gpushare.objects.model import Container, Pod, Resources
from gpusharectl.simulate import view
from gpusharectl.simulate.gain.needs import Needs
from gpusharectl.simulate.gain.parts import parts, room
from gpusharectl.simulate.other_systems.node_gpus import RESOURCES
from gpusharectl.simulate.other_systems.other_pods import gpus_of
from gpusharectl.simulate.simulated_cluster import SimulatedCluster

_ROUNDS: Final = 3  # after which the pods that are left keep their GPUs too


@dataclass(slots=True)
class Shared:
    """The pods with whole GPUs, today's and as they would be, and the numbers about them.

    ``then`` are the bound ones, and ``waiting`` those that are Pending today: bound if they would
    start. Pods that keep their GPUs whole are as today.
    """

    today: list[Pod]
    then: list[Pod]
    waiting: list[Pod]
    numbers: view.Assumed


@dataclass(slots=True)
class Answer:
    """``shared`` is None if no node offers whole GPUs."""

    gain: view.Gain
    shared: Shared | None


def answer(cluster: SimulatedCluster, pending: Iterable[Pod], needs: Needs) -> Answer | None:
    """Return the gain; None if every node with GPUs shares them by memory already.

    ``pending`` are pods that wait for whole GPUs.
    """
    found = parts(cluster, needs)
    if not found:
        return None
    waiting = [pod for pod in pending if needs.counts(pod)]
    made = _shared(cluster, waiting, needs)
    numbers = made.numbers if made is not None else None
    gain = view.Gain(needs.notebook_mib, needs.namespace, len(waiting), found, numbers)
    return Answer(gain, made)


def sharing(cluster: SimulatedCluster, pending: Iterable[Pod], needs: Needs) -> dict[str, Pod]:
    """Return by uid the pods with whole GPUs as if they requested memory, on no node yet.

    Pods that keep their GPUs whole are not among them.
    """
    moving = _Moving(cluster, needs)
    bound = {pod.uid: made for pod, made in moving.moved}
    return bound | {pod.uid: moving.asking(pod) for pod in pending if needs.counts(pod)}


def _shared(cluster: SimulatedCluster, pending: Sequence[Pod], needs: Needs) -> Shared | None:
    """Place the pods with whole GPUs again; None if no node has whole GPUs.

    A pod that finds no room keeps its GPUs whole, which can take the room of others.
    """
    names = list(filter(cluster.is_whole, cluster.ledger.nodes()))
    if not names:
        return None
    moving = _Moving(cluster, needs)
    trial, kept = _placed(cluster, moving.moved)
    waiting = sorted(pending, key=lambda pod: (-pod.priority, pod.key))
    tried = [_place(trial, asking) or asking for asking in map(moving.asking, waiting)]
    here = _with_whole(cluster)
    then = [trial.pod(pod.uid) or pod for pod in here]
    counted = [pod for pod in then if needs.counts(pod)]
    free = {name: sum(not each.used for each in trial.account(name).cards) for name in names}
    empty = [name for name in names if free[name] == len(trial.account(name).cards)]
    numbers = view.Assumed(
        by=needs.by.value,
        mib_per_gpu=moving.mib,
        pods=len(moving.pods),
        measured=moving.measured,
        unknown=moving.unknown,
        smaller=moving.smaller,
        not_placed=len(kept),
        gpus_today=sum(len(cluster.cards_of(pod)) for pod in moving.pods),
        gpus=len({(pod.node, index) for pod in counted for index in trial.cards_of(pod)}),
        pending=len(waiting),
        started=sum(bool(pod.node) for pod in tried),
        free_gpus=sum(free.values()),
        free_nodes=len(empty),
        free_gpus_of_nodes=sum(free[name] for name in empty),
        largest_mib=moving.largest_mib,
        fit=sum(room(trial, name, needs.notebook_mib) for name in names),
    )
    return Shared([*here, *waiting], then, tried, numbers)


def _with_whole(cluster: SimulatedCluster) -> list[Pod]:
    """Return the bound pods with whole GPUs; those with most come first."""
    here = [pod for pod in cluster.bound() if gpus_of(pod) and cluster.is_whole(pod.node)]
    return sorted(here, key=lambda pod: (-gpus_of(pod), pod.key))


class _Moving:
    """What each pod with whole GPUs would request; ``moved`` has those that would request less."""

    def __init__(self, cluster: SimulatedCluster, needs: Needs) -> None:
        self._cluster, self._needs = cluster, needs
        self.pods = [pod for pod in _with_whole(cluster) if needs.counts(pod)]
        whole = filter(cluster.is_whole, cluster.ledger.nodes())
        cards = (entry.card for name in whole for entry in cluster.account(name).cards)
        self.largest_mib = max((card.units for card in cards), default=0) * cluster.unit_mib
        self.mib = needs.otherwise(self.largest_mib)
        self.measured = self.unknown = self.smaller = 0
        self.moved = list(self._moved())

    def asking(self, pod: Pod) -> Pod:
        """Return a Pending pod as if it requested memory; the same one if it is unknown."""
        if self.mib is None:
            return pod
        return _sharing(pod, -(-self.mib // self._cluster.unit_mib))

    def _moved(self) -> Iterator[tuple[Pod, Pod]]:
        cluster, used = self._cluster, self._needs.used or {}
        for pod in self.pods:
            self.measured += pod.key in used
            mib = used.get(pod.key, self.mib)
            if mib is None:
                self.unknown += 1
                continue
            units = max(1, -(-mib // cluster.unit_mib))
            indexes = cluster.cards_of(pod)
            every = cluster.account(pod.node).cards
            cards = [entry.card for entry in every if entry.card.index in indexes]
            if any(card.units < units for card in cards):
                self.smaller += 1
                continue
            # Nothing says that it can run on other models.
            models = ",".join(sorted({card.model for card in cards if card.model}))
            yield pod, _sharing(pod, units, models)


def _placed(
    cluster: SimulatedCluster, moved: Sequence[tuple[Pod, Pod]]
) -> tuple[SimulatedCluster, set[str]]:
    """Return the nodes with whole GPUs after all pods are placed again.

    The uids are those of pods that found no room, and kept their GPUs.
    """
    kept: set[str] = set()
    trial, left = _trial(cluster, moved, kept)
    for _ in range(_ROUNDS):
        if not left:
            break
        kept |= {pod.uid for pod in left}
        trial, left = _trial(cluster, moved, kept)
    for pod in left:
        trial.bind(pod)
    return trial, kept | {pod.uid for pod in left}


def _trial(
    cluster: SimulatedCluster, moved: Sequence[tuple[Pod, Pod]], kept: set[str]
) -> tuple[SimulatedCluster, list[Pod]]:
    """Return the nodes with whole GPUs after all pods are placed again, and pods without room."""
    trial = cluster.empty_copy(cluster.is_whole)
    again = {pod.uid for pod, _ in moved} - kept
    for pod in cluster.bound():
        if pod.uid not in again and trial.knows(pod.node):
            trial.bind(pod)
    return trial, [
        pod
        for pod, asking in moved
        if pod.uid in again and (_place(trial, asking) or _place(trial, asking, pod.node)) is None
    ]


def _place(trial: SimulatedCluster, pod: Pod, own: str = "") -> Pod | None:
    """Place the pod on the best node, or on its ``own`` one; None if it does not fit."""
    try:
        return trial.place_on(pod, own) if own else trial.place(pod)
    except RequestError:
        return None


def _sharing(pod: Pod, units: int, models: str = "") -> Pod:
    """Return the pod as if it requested memory instead of GPUs, bound to no node."""
    count = gpus_of(pod)
    first, *others = (_without_gpus(each) for each in pod.containers)
    limits = {**first.limits, RESOURCE_MEMORY: units * count}
    asking = replace(first, resources=Resources(limits, first.requests))
    inits = tuple(_without_gpus(each) for each in pod.init_containers)
    labels = {**pod.labels, LABEL_CARD_COUNT: str(count)}
    annotations = {**pod.annotations, **({ANNOTATION_CARD_MODELS: models} if models else {})}
    spec = replace(pod.spec, node_name=None, containers=(asking, *others), init_containers=inits)
    metadata = replace(pod.metadata, labels=labels, annotations=annotations)
    return replace(pod, metadata=metadata, spec=spec)


def _without_gpus(container: Container) -> Container:
    limits, requests = (
        {name: amount for name, amount in amounts.items() if name not in RESOURCES}
        for amounts in (container.limits, container.requests)
    )
    return replace(container, resources=Resources(limits, requests))
