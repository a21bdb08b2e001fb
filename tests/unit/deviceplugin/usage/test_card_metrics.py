"""The metrics show units, health and used units of each GPU."""

from types import SimpleNamespace

from deviceplugin.kubelet.node_pod import NodePod
from deviceplugin.usage.card_metrics import CardCollector
from gpushare.contract import ANNOTATION_CARDS
from tests.builders import pod, stock


def shown(collector):
    return {
        (family.name, sample.labels["card"]): sample.value
        for family in collector.collect()
        for sample in family.samples
    }


def bound(name, units, cards, **more):
    return pod(name, units, node="n", annotations={ANNOTATION_CARDS: cards}, **more)


def test_each_gpu_is_shown_with_what_its_live_pods_hold():
    cards = SimpleNamespace(inventory=None)
    pods = [
        bound("a", 6, "GPU-0"),
        bound("b", 4, "GPU-0,GPU-1"),
        bound("over", 9, "GPU-1", phase="Succeeded"),
        pod("waits", 5),
    ]
    made = CardCollector("n", cards, [NodePod.of(each) for each in pods])
    assert shown(made) == {}
    cards.inventory = stock(16, 8, unhealthy=[1])
    assert shown(made) == {
        ("gpushare_card_units", "0"): 16,
        ("gpushare_card_used_units", "0"): 8,
        ("gpushare_card_healthy", "0"): 1,
        ("gpushare_card_units", "1"): 8,
        ("gpushare_card_used_units", "1"): 2,
        ("gpushare_card_healthy", "1"): 0,
    }
