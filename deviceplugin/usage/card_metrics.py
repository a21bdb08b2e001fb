"""This node's cards and who holds them, read when Prometheus asks: the extender has sums only."""

from collections.abc import Iterable, Iterator

from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpushare.annotations.pod_annotations import share_of
from gpushare.cards.model import Inventory
from gpushare.objects.model import Pod

_LABELS = ("node", "card", "uuid")


class CardCollector(Collector):
    """Shows nothing before ``node``, ``inventory`` and ``pods`` are known."""

    def __init__(self) -> None:
        self.node = ""
        self.inventory: Inventory | None = None
        self.pods: Iterable[Pod] = ()

    def collect(self) -> Iterator[Metric]:
        units = GaugeMetricFamily("gpushare_card_units", "Units of a card.", labels=_LABELS)
        used = GaugeMetricFamily(
            "gpushare_card_used_units",
            "Units held by the pods of this node, by what is written on them.",
            labels=_LABELS,
        )
        healthy = GaugeMetricFamily("gpushare_card_healthy", "1 if usable.", labels=_LABELS)
        held = self._held()
        for card in self.inventory.cards if self.inventory is not None else ():
            labels = (self.node, str(card.index), card.uuid)
            units.add_metric(labels, card.units)
            used.add_metric(labels, held.get(card.uuid, 0))
            healthy.add_metric(labels, card.is_healthy)
        yield from (units, used, healthy)

    def _held(self) -> dict[str, int]:
        held: dict[str, int] = {}
        for pod in self.pods:
            share = share_of(pod, self.inventory)
            for uuid in share.cards if share is not None else ():
                held[uuid] = held.get(uuid, 0) + (share.units if share is not None else 0)
        return held


CARD_DETAIL = CardCollector()
REGISTRY.register(CARD_DETAIL)
