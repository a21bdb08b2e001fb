"""Count the notebooks that fit on GPUs as they are shared today, and by memory (pure)."""

from collections import Counter
from typing import Final

from gpushare.annotations.pod_annotations import asks_for_share
from gpusharectl.simulate import view
from gpusharectl.simulate.gain.needs import Needs
from gpusharectl.simulate.other_systems.node_gpus import Sharing
from gpusharectl.simulate.other_systems.other_pods import gpus_of, is_hami
from gpusharectl.simulate.simulated_cluster import SimulatedCluster

BY_MEMORY: Final = "memory"


def parts(cluster: SimulatedCluster, needs: Needs) -> tuple[view.GainPart, ...]:
    """Return what the nodes hold and could hold, by how they share their GPUs.

    It is empty if every node with GPUs shares them by memory already.
    """
    found = [made for each in Sharing if (made := _part(cluster, each, needs)) is not None]
    by_memory = _by_memory(cluster, needs) if found else None
    return tuple(found if by_memory is None else [*found, by_memory])


def room(cluster: SimulatedCluster, node: str, mib: int) -> int:
    """Return how many more notebooks of ``mib`` the node takes by memory."""
    return min(cluster.pods_left(node), _by_free_memory(cluster, node, mib))


def _part(cluster: SimulatedCluster, sharing: Sharing, needs: Needs) -> view.GainPart | None:
    gpus = replicas = used = fit = today = 0
    pods: set[str] = set()
    for name in cluster.ledger.nodes():
        offered = cluster.others.offered(name)
        if offered is None or offered.sharing is not sharing:
            continue
        left, free = cluster.pods_left(name), 0
        for entry in cluster.account(name).cards:
            slots = cluster.others.replicas_used(name, entry.card.uuid)
            gpus, replicas = gpus + 1, replicas + offered.replicas
            part = entry.card.units * cluster.unit_mib
            if offered.sharing is Sharing.MPS:
                part //= offered.replicas  # NVIDIA's control daemon limits each to it
            if entry.card.takes_new and not entry.unplaced and part >= needs.notebook_mib:
                free += offered.replicas - slots if offered.replicas > 1 else int(not entry.used)
        here = [p for p in cluster.pods_on(name) if needs.counts(p) and (gpus_of(p) or is_hami(p))]
        pods.update(pod.uid for pod in here)
        if offered.replicas == 1:
            used += len({index for pod in here for index in cluster.cards_of(pod)})
        else:
            used += sum(cluster.others.replicas_of(pod) for pod in here)
        fit += room(cluster, name, needs.notebook_mib)
        by_hami = sharing is Sharing.HAMI
        today += min(left, _by_hami(cluster, name, needs.notebook_mib) if by_hami else free)
    if not gpus:
        return None
    return view.GainPart(sharing.value, gpus, replicas, len(pods), used, today, fit)


def _by_memory(cluster: SimulatedCluster, needs: Needs) -> view.GainPart | None:
    """Return the nodes that share by memory already; None without any."""
    gpus = pods = used = fit = 0
    for name in cluster.ledger.nodes():
        if cluster.others.offered(name) is not None:
            continue
        here = [p for p in cluster.pods_on(name) if needs.counts(p) and asks_for_share(p)]
        gpus += len(cluster.account(name).cards)
        pods += len(here)
        used += len({index for pod in here for index in cluster.cards_of(pod)})
        fit += room(cluster, name, needs.notebook_mib)
    return view.GainPart(BY_MEMORY, gpus, gpus, pods, used, fit, fit) if gpus else None


def _by_free_memory(cluster: SimulatedCluster, node: str, mib: int) -> int:
    units = -(-mib // cluster.unit_mib)
    return sum(entry.free // units for entry in cluster.account(node).open)


def _by_hami(cluster: SimulatedCluster, node: str, mib: int) -> int:
    """Return how many notebooks HAMi would start: it limits the number of pods on each GPU."""
    offered = cluster.others.offered(node)
    most = offered.most_pods if offered is not None else {}
    units = -(-mib // cluster.unit_mib)
    pods = Counter(uuid for share in cluster.ledger.shares(node) for uuid in share.cards)
    return sum(
        min(entry.free // units, max(0, most.get(entry.card.uuid, 0) - pods[entry.card.uuid]))
        for entry in cluster.account(node).open
    )
