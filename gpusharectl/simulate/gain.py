"""Compute what a cluster would gain if it shared its GPUs by memory (pure)."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from gpushare.contract import ANNOTATION_CARD_MODELS, LABEL_CARD_COUNT, RESOURCE_MEMORY
from gpushare.errors import RequestError
from gpushare.objects.model import Container, Pod, Resources
from gpushare.text.amounts import MIB_PER_GIB, free_gib, needed_gib
from gpushare.text.counted import counted
from gpusharectl.simulate import view
from gpusharectl.simulate.other_systems.node_gpus import RESOURCES, Sharing
from gpusharectl.simulate.other_systems.other_pods import gpus_of, is_hami
from gpusharectl.simulate.simulated_cluster import SimulatedCluster

NOTEBOOK_MIB: Final = 8 * MIB_PER_GIB
_ROUNDS: Final = 3  # after which the pods that are left keep their GPUs too


def gain(
    cluster: SimulatedCluster, pending: Sequence[Pod], assumed_gib: int | None
) -> view.Gain | None:
    """Return the gain; None if every node with GPUs shares them by memory already.

    ``pending`` are pods that wait for whole GPUs. ``assumed_gib``: what each pod with whole GPUs is
    assumed to need of each of them.
    """
    parts = tuple(part for each in Sharing if (part := _part(cluster, each)) is not None)
    if not parts:
        return None
    has_whole = any(part.sharing == Sharing.WHOLE for part in parts)
    assumed = None
    if assumed_gib is not None and has_whole:
        assumed = _assumed(cluster, pending, assumed_gib)
    return view.Gain(NOTEBOOK_MIB, parts, assumed)


def lines(found: view.Gain) -> Iterator[str]:
    """Yield the gain in sentences, the assumptions last."""
    size = f"of {free_gib(found.notebook_mib)}"
    for part in found.parts:
        yield _sentence(part, size)
    pods = sum(part.pods for part in found.parts if part.sharing == Sharing.WHOLE)
    if found.assumed is not None:
        yield _if_assumed(found.assumed, size)
    elif pods:
        yield (
            "The files do not say how much memory pods with whole GPUs use. If they need 16 GiB of "
            "each GPU, for example, add --assume-memory 16."
        )
    yield (
        "Counted by GPU memory, not by CPU or taints. A pod with a whole GPU keeps all of it; "
        "a replica counts as its part of the GPU."
    )


def _sentence(part: view.GainPart, size: str) -> str:
    pods = f"{counted(part.pods, 'pod')} {'uses' if part.pods == 1 else 'use'}"
    gpus, fit = counted(part.gpus, "GPU"), counted(part.fit, "more notebook")
    today = counted(part.fit_today, "more notebook")
    match part.sharing:
        case Sharing.WHOLE if not part.fit:
            return f"{pods} {part.used} of {gpus} whole: no notebook {size} fits."
        case Sharing.WHOLE:
            return (
                f"{pods} {part.used} of {gpus} whole. Today {today} {size} would fit, "
                f"and {part.fit} if GPUs were shared by memory."
            )
        case Sharing.HAMI:
            also = (
                "also with HAMi"
                if part.fit_today == part.fit
                else (f"but only {part.fit_today} by HAMi's number of pods on each GPU")
            )
            return f"{pods} HAMi's shares of {gpus}: {fit} {size} would fit, {also}."
        case _:
            text = (
                f"{pods} {part.used} of {counted(part.replicas, 'replica')} of {gpus} "
                f"({part.sharing}). Today {today} {size} could start"
            )
            if part.fit < part.fit_today:
                return (
                    f"{text}, but there is memory for {part.fit}: gpushare would start only those."
                )
            return f"{text}, and {part.fit} if GPUs were shared by memory."


def _if_assumed(found: view.Assumed, size: str) -> str:
    amount, fit = needed_gib(found.mib_per_gpu), f"{counted(found.fit, 'notebook')} {size}"
    if found.pods:
        one = found.pods == 1
        which = "the pod" if one else f"each of the {found.pods} pods"
        text = (
            f"If {which} with whole GPUs requested {amount} of each, "
            f"{'it' if one else 'they'} would use {counted(found.gpus, 'GPU')} "
            f"instead of {found.gpus_today}" + ("." if found.pending else f", and {fit} would fit.")
        )
    else:
        text = "No pod uses a whole GPU" + ("." if found.pending else f": {fit} would fit.")
    if found.not_placed:
        text += f" {found.not_placed} of these pods would find no room and keep their GPUs whole."
    if found.pending:
        asked = "" if found.pods else f" if they requested {amount} of each"
        text += (
            f" Of the Pending pods that request whole GPUs, {found.started} of {found.pending} "
            f"would start{asked}; then {fit} would fit."
        )
    return text


def _part(cluster: SimulatedCluster, sharing: Sharing) -> view.GainPart | None:
    """Return what the nodes hold, and could hold, that share GPUs in this way; None without any."""
    gpus = replicas = used = fit = today = 0
    pods: set[str] = set()
    for name in cluster.ledger.nodes():
        offered = cluster.others.offered(name)
        if offered is None or offered.sharing is not sharing:
            continue
        left, free = cluster.pods_left(name), 0
        for entry in cluster.account(name).cards:
            slots = cluster.others.replicas_used(name, entry.card.uuid)
            gpus, replicas, used = gpus + 1, replicas + offered.replicas, used + slots
            part = entry.card.units * cluster.unit_mib
            if offered.sharing is Sharing.MPS:
                part //= offered.replicas  # NVIDIA's control daemon limits each to it
            if entry.card.takes_new and not entry.unplaced and part >= NOTEBOOK_MIB:
                free += offered.replicas - slots if offered.replicas > 1 else int(not entry.used)
        here = [pod for pod in cluster.pods_on(name) if gpus_of(pod) or is_hami(pod)]
        pods.update(pod.uid for pod in here)
        if offered.replicas == 1:
            used += len({index for pod in here for index in cluster.cards_of(pod)})
        more = min(left, _notebooks(cluster, name))
        fit += more
        today += min(left, _by_hami(cluster, name) if sharing is Sharing.HAMI else free)
    if not gpus:
        return None
    return view.GainPart(sharing.value, gpus, replicas, len(pods), used, today, fit)


def _notebooks(cluster: SimulatedCluster, node: str) -> int:
    units = -(-NOTEBOOK_MIB // cluster.unit_mib)
    return sum(entry.free // units for entry in cluster.account(node).open)


def _by_hami(cluster: SimulatedCluster, node: str) -> int:
    """Return how many notebooks HAMi would start: it limits the number of pods on each GPU."""
    offered = cluster.others.offered(node)
    most = offered.most_pods if offered is not None else {}
    units = -(-NOTEBOOK_MIB // cluster.unit_mib)
    pods = Counter(uuid for share in cluster.ledger.shares(node) for uuid in share.cards)
    return sum(
        min(entry.free // units, max(0, most.get(entry.card.uuid, 0) - pods[entry.card.uuid]))
        for entry in cluster.account(node).open
    )


def _assumed(cluster: SimulatedCluster, pending: Sequence[Pod], gib: int) -> view.Assumed:
    """Place the pods with whole GPUs again, as if each requested ``gib`` of each GPU.

    A pod that finds no room keeps its GPUs whole, which can take the room of others.
    """
    here = [pod for pod in cluster.bound() if gpus_of(pod) and _is_whole(cluster, pod.node)]
    here.sort(key=lambda pod: (-gpus_of(pod), pod.key))
    units = -(-gib * MIB_PER_GIB // cluster.unit_mib)
    moved = [(pod, _shared(cluster, pod, units)) for pod in here]
    kept: set[str] = set()
    trial, left = _trial(cluster, moved, kept)
    for _ in range(_ROUNDS):
        if not left:
            break
        kept |= {pod.uid for pod in left}
        trial, left = _trial(cluster, moved, kept)
    kept |= {pod.uid for pod in left}
    for pod in left:
        trial.bind(pod)
    used = (trial.pod(pod.uid) for pod in here)
    cards = {(pod.node, index) for pod in used if pod for index in trial.cards_of(pod)}
    waiting = sorted(pending, key=lambda pod: (-pod.priority, pod.key))
    started = [pod for pod in waiting if _place(trial, _sharing(pod, units)) is not None]
    fit = sum(min(trial.pods_left(name), _notebooks(trial, name)) for name in trial.ledger.nodes())
    return view.Assumed(
        mib_per_gpu=gib * MIB_PER_GIB,
        pods=len(here),
        not_placed=len(kept),
        gpus_today=sum(len(cluster.cards_of(pod)) for pod in here),
        gpus=len(cards),
        pending=len(waiting),
        started=len(started),
        fit=fit,
    )


def _trial(
    cluster: SimulatedCluster, moved: Sequence[tuple[Pod, Pod]], kept: set[str]
) -> tuple[SimulatedCluster, list[Pod]]:
    """Return the nodes with whole GPUs after all pods are placed again, and pods without room."""
    trial = cluster.empty_copy(lambda name: _is_whole(cluster, name))
    again = {pod.uid for pod, _ in moved} - kept
    for pod in cluster.bound():
        if pod.uid not in again and trial.knows(pod.node):
            trial.bind(pod)
    return trial, [
        pod
        for pod, shared in moved
        if pod.uid in again and (_place(trial, shared) or _place(trial, shared, pod.node)) is None
    ]


def _is_whole(cluster: SimulatedCluster, node: str) -> bool:
    offered = cluster.others.offered(node)
    return offered is not None and offered.sharing is Sharing.WHOLE


def _shared(cluster: SimulatedCluster, pod: Pod, units: int) -> Pod:
    """Return the pod with at most the memory of its GPUs, and only on their models.

    Nothing says that it can run on others.
    """
    indexes = cluster.cards_of(pod)
    cards = [entry.card for entry in cluster.account(pod.node).cards if entry.card.index in indexes]
    models = ",".join(sorted({card.model for card in cards if card.model}))
    return _sharing(pod, min((units, *(card.units for card in cards))), models)


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
