"""A node blocks new pods while the plugin cannot find the pod of an Allocate."""

import asyncio

import pytest

from deviceplugin.cards.device_list import HEALTHY
from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.cards.survey import Terms
from deviceplugin.cdi.binding import Binding
from deviceplugin.cdi.rules import Choice, Probe
from deviceplugin.errors import KubeletError, NoMatch
from deviceplugin.server import kubelet_outage
from deviceplugin.server.kubelet_outage import FAILURES, WITHIN_SECONDS, KubeletOutage
from protos.deviceplugin.v1beta1 import api_pb2
from tests.fakes.clock import FakeClock
from tests.fakes.driver import card
from tests.waiting import eventually, running

DENIED = KubeletError("GET /pods: 403; the plugin's ServiceAccount needs `get nodes/pods`")


class Kubelet:
    def __init__(self) -> None:
        self.fails: KubeletError | None = DENIED
        self.asked = 0

    async def fetch(self):
        self.asked += 1
        if self.fails is not None:
            raise self.fails
        return []


class Bench:
    def __init__(self) -> None:
        self.kubelet, self.time = Kubelet(), FakeClock()
        self.cards = NodeCards(Terms(1024), None)
        self.cards.seen([card(0), card(1)])
        self.binding = Binding(
            forced="early", needs_cdi=False, last=None, probe=lambda: Probe.UNKNOWN
        )
        self.outage = KubeletOutage(self.cards, self.kubelet, self.binding, self.time)

    def fail(self, times: int = FAILURES, err: Exception | None = None) -> None:
        for _ in range(times):
            self.outage.allocate_failed(err or unknown_pod())

    @property
    def offered(self) -> int:
        listed = api_pb2.ListAndWatchResponse.FromString(self.cards.message)
        return sum(device.health == HEALTHY for device in listed.devices)


@pytest.fixture
def bench(monkeypatch) -> Bench:
    monkeypatch.setattr(kubelet_outage, "PROBE_SECONDS", 0.01)
    return Bench()


def unknown_pod() -> Exception:
    """The error of an Allocate whose pod neither the kubelet nor the watch could tell."""
    try:
        try:
            raise DENIED
        except KubeletError:
            raise NoMatch("no pod of this node waits") from None
    except NoMatch as err:
        return err


async def test_three_rejected_pods_without_the_kubelets_answer_block_the_node(bench) -> None:
    async with running(bench.outage.run()):
        bench.fail()
        await eventually(lambda: not bench.offered)
        assert "get nodes/pods" in bench.cards.why_blocked
        assert not any(card.is_healthy for card in bench.cards.inventory.cards)
        first = bench.kubelet.asked
        await eventually(lambda: bench.kubelet.asked > first + 2)
        bench.kubelet.fails = None
        await eventually(lambda: bench.offered == 30)
    assert not bench.cards.why_blocked


async def test_a_node_with_late_binding_is_not_blocked(bench) -> None:
    async with running(bench.outage.run()):
        bench.fail()
        await eventually(lambda: not bench.offered)
        bench.binding.now = Choice("late", "CDI files are read here")
        await eventually(lambda: bench.offered == 30)
    assert bench.kubelet.fails, "it has not said anything since"


async def test_admitted_pods_start_while_the_node_is_blocked(bench) -> None:
    async with running(bench.outage.run()):
        bench.fail()
        await eventually(lambda: bench.cards.why_blocked)
    offered = bench.cards.inventory.cards
    assert [bench.cards.trouble(each, at_start=True) for each in offered] == [None, None]


async def test_a_kubelet_that_answers_again_does_not_block_the_node(bench) -> None:
    bench.kubelet.fails = None
    async with running(bench.outage.run()):
        bench.fail()
        await eventually(lambda: bench.kubelet.asked)
        assert bench.offered == 30


async def test_few_failures_or_ones_far_apart_or_for_another_cause_block_nothing(bench) -> None:
    async with running(bench.outage.run()):
        bench.fail(10, NoMatch("no pod of this node waits for 3 units"))
        bench.fail(FAILURES - 1)
        bench.time.now += WITHIN_SECONDS + 1
        bench.fail(FAILURES - 1)
        await asyncio.sleep(0)
    assert not bench.kubelet.asked
    assert bench.offered == 30
