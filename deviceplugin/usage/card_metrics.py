"""Metrics of this node's GPUs and of their use, which the extender has only as sums."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.kubelet.node_pod import NodePod
from deviceplugin.metrics import OTHERS_USED, POD_ASKED, POD_LIMIT, POD_SM, POD_USED
from deviceplugin.usage.rules import MIB, Usage
from gpushare.cards.model import Inventory

_LABELS = ("node", "card", "uuid")


class CardCollector(Collector):
    """Reads the GPUs and the pods when Prometheus asks."""

    def __init__(self, node: str, cards: NodeCards, pods: Iterable[NodePod]) -> None:
        self._node = node
        self._cards = cards
        self._pods = pods

    def collect(self) -> Iterator[Metric]:
        units = GaugeMetricFamily("gpushare_card_units", "Units of a GPU.", labels=_LABELS)
        used = GaugeMetricFamily(
            "gpushare_card_used_units",
            "Units of a GPU used by pods, according to their annotations.",
            labels=_LABELS,
        )
        healthy = GaugeMetricFamily(
            "gpushare_card_healthy",
            "1 if a GPU is healthy.",
            labels=_LABELS,
        )
        inventory = self._cards.inventory
        amounts: dict[str, int] = {}
        for pod in self._pods:
            if (share := pod.share(inventory)) is not None:
                for uuid in share.cards:
                    amounts[uuid] = amounts.get(uuid, 0) + share.units
        for card in inventory.cards if inventory is not None else ():
            labels = (self._node, str(card.index), card.uuid)
            units.add_metric(labels, card.units)
            used.add_metric(labels, amounts.get(card.uuid, 0))
            healthy.add_metric(labels, card.is_healthy)
        yield from (units, used, healthy)


def show_usage(usage: Usage, inventory: Inventory | None) -> None:
    """Replace all series. The index of a GPU that is not in the inventory is empty.

    Nothing is awaited in between, so no scrape sees half of it.
    """
    index = {card.uuid: str(card.index) for card in inventory.cards} if inventory else {}
    for gauge in (POD_USED, POD_ASKED, POD_SM, POD_LIMIT, OTHERS_USED):
        gauge.clear()
    for row in usage.containers:
        if not row.is_measured:
            continue
        meta, card = row.pod.metadata, index.get(row.uuid, "")
        labels = (meta.namespace, meta.name, row.container, card, row.uuid)
        POD_ASKED.labels(*labels).set(row.asked_mib)
        if row.used_mib is not None:
            POD_USED.labels(*labels).set(row.used_mib)
        if row.sm_percent is not None:
            POD_SM.labels(*labels).set(row.sm_percent)
        if row.limit.hard_bytes is not None:
            POD_LIMIT.labels(*labels).set(row.limit.hard_bytes // MIB)
    for (uuid, by), used_mib in usage.others.items():
        if used_mib is not None:
            OTHERS_USED.labels(index.get(uuid, ""), uuid, by).set(used_mib)
