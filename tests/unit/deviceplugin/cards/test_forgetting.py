"""GPUs that are gone for good are forgotten, and no index is given twice."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deviceplugin.cards.forgetting import Forgetting
from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.cards.state_file import decode, encode
from deviceplugin.cards.survey import Terms
from deviceplugin.driver.interface import UnreadableCard
from deviceplugin.kubelet.watched_pods import NodePods
from deviceplugin.report.node import difference
from gpushare.annotations import inventory
from gpushare.cards.model import FORGET_GONE_SECONDS
from gpushare.contract import ANNOTATION_CARDS
from tests.builders import node, pod
from tests.fakes.clock import FakeClock
from tests.fakes.driver import card

DAY, HOUR = 86400.0, 3600.0
TERMS = Terms(unit_mib=1024)


class Machine:
    """A node whose program may be started again; its clock is set by hand."""

    def __init__(self) -> None:
        self.clock = FakeClock(1.8e9)
        self.pods = NodePods()
        self.pods.replaced([])
        self.cordoned: set[str] = set()
        self.saved = None
        self.start()

    def start(self) -> None:
        """Start the program again, with what it has kept on disk."""
        before = decode(encode(self.saved)) if self.saved is not None else None
        self.cards = NodeCards(TERMS, before, clock=self.clock)
        self.cards.adopt(None)
        self.cards.set_cordoned(self.cordoned)

    def show(self, *numbers: int, after: float = 0.0) -> None:
        self.clock.now += after
        self.cards.seen([card(number) for number in numbers])
        self.check()

    def check(self) -> None:
        Forgetting(self.cards, self.pods).check()
        self.saved = self.cards.saved()

    @property
    def known(self) -> dict[str, int]:
        return {each.uuid: each.index for each in self.cards.inventory.cards}


@pytest.fixture
def machine() -> Machine:
    made = Machine()
    made.show(0, 1)
    return made


def test_a_machine_with_other_gpus_each_night_does_not_collect_them() -> None:
    machine = Machine()
    for night in range(31):
        machine.start()
        machine.show(night)
        machine.show(night, after=8 * HOUR)
        assert len(machine.known) <= FORGET_GONE_SECONDS / DAY + 1
        assert machine.known[card(night).uuid] == night
        machine.clock.now += 16 * HOUR
    written = difference(node("n", 14), machine.cards.inventory)["status"]["capacity"]
    assert written == {"aliyun.com/gpu-count": "4"}


def test_a_missing_gpu_is_shown_as_gone_until_it_is_forgotten(machine: Machine) -> None:
    machine.show(0, after=10)
    gone_at = int(machine.clock.now)
    machine.show(0, after=FORGET_GONE_SECONDS - 1)
    first, second = inventory.decode(inventory.encode(machine.cards.inventory)).cards
    assert (first.gone_since, second.gone_since) == (0, gone_at)
    assert not second.is_healthy
    machine.show(0, after=1)
    assert machine.known == {card(0).uuid: 0}
    reason, text = machine.cards.notices[f"{card(1).uuid} forgotten"]
    assert reason == "CardForgotten"
    assert "GPU 1" in text


def test_the_time_goes_on_over_a_restart_of_the_program(machine: Machine) -> None:
    machine.show(0)
    for _ in range(3):
        machine.start()
        machine.show(0, after=DAY)
    machine.show(0, after=2 * HOUR)
    assert machine.known == {card(0).uuid: 0}


def test_the_nodes_annotation_is_enough_to_go_on(machine: Machine) -> None:
    machine.show(0)
    published = machine.cards.inventory
    machine.clock.now += FORGET_GONE_SECONDS
    machine.cards = NodeCards(TERMS, None, clock=machine.clock)
    machine.cards.adopt(published)
    machine.cards.set_cordoned(set())
    machine.show(0)
    machine.show(0, after=2 * HOUR)
    assert machine.known == {card(0).uuid: 0}


def test_a_gpu_that_comes_back_keeps_its_place_and_its_time_starts_again(machine: Machine) -> None:
    machine.show(0)
    machine.show(0, 1, after=FORGET_GONE_SECONDS - 1)
    assert machine.cards.inventory.cards[1].gone_since == 0
    machine.show(0)
    machine.show(0, after=FORGET_GONE_SECONDS - 1)
    assert machine.known == {card(0).uuid: 0, card(1).uuid: 1}


def test_a_clock_that_jumps_forward_after_a_boot_forgets_nothing_at_once(machine: Machine) -> None:
    machine.clock.now = 1000.0
    machine.start()
    machine.show(0)
    machine.start()
    machine.clock.now = 1.9e9
    machine.show(0)
    machine.show(0, after=HOUR - 1)
    assert len(machine.known) == 2


def test_a_gpu_that_a_pod_uses_stays_until_the_pod_has_ended(machine: Machine) -> None:
    user = pod("a", 4, node="n", annotations={ANNOTATION_CARDS: card(1).uuid})
    machine.pods.replaced([user])
    machine.show(0)
    machine.show(0, after=2 * FORGET_GONE_SECONDS)
    assert len(machine.known) == 2
    machine.pods.deleted(user)
    machine.check()
    assert machine.known == {card(0).uuid: 0}


def test_a_pod_whose_gpu_is_not_known_keeps_all(machine: Machine) -> None:
    machine.pods.replaced([pod("a", 4, node="n", annotations={ANNOTATION_CARDS: "GPU-unknown"})])
    machine.show(0)
    machine.show(0, after=2 * FORGET_GONE_SECONDS)
    assert len(machine.known) == 2


def test_nothing_is_forgotten_before_pods_and_cordons_are_known(machine: Machine) -> None:
    machine.show(0)
    machine.pods.is_listed = False
    machine.show(0, after=2 * FORGET_GONE_SECONDS)
    assert len(machine.known) == 2
    machine.pods.is_listed = True
    machine.cards.set_cordoned(None)
    machine.check()
    assert len(machine.known) == 2


def test_a_cordoned_gpu_stays_because_the_annotation_names_it(machine: Machine) -> None:
    machine.cards.set_cordoned({card(1).uuid})
    machine.show(0)
    machine.show(0, after=2 * FORGET_GONE_SECONDS)
    assert len(machine.known) == 2
    machine.cards.set_cordoned(set())
    machine.check()
    assert len(machine.known) == 1


def test_a_gpu_that_is_there_and_broken_is_never_forgotten(machine: Machine) -> None:
    for _ in range(10):
        machine.clock.now += FORGET_GONE_SECONDS
        machine.cards.seen([card(0), UnreadableCard(1, "", "GPU is lost", is_definite=True)])
        machine.check()
    machine.cards.driver_is_silent("no answer")
    machine.clock.now += FORGET_GONE_SECONDS
    machine.check()
    assert len(machine.known) == 2


steps = st.tuples(st.sets(st.integers(0, 6)), st.floats(0, 2 * FORGET_GONE_SECONDS), st.booleans())


@settings(deadline=None, max_examples=50)
@given(st.lists(steps, max_size=20))
def test_an_index_is_never_given_to_another_gpu(history) -> None:
    """Whatever comes, goes and is forgotten: a GPU that returns may get a new index, no old one."""
    machine = Machine()
    owners: dict[int, str] = {}
    for numbers, seconds, restarts in history:
        if restarts:
            machine.start()
        machine.show(*sorted(numbers), after=seconds)
        for uuid, index in machine.known.items():
            assert owners.setdefault(index, uuid) == uuid
        shown = {card(number).uuid for number in numbers}
        assert shown <= machine.known.keys()
        published = inventory.decode(inventory.encode(machine.cards.inventory))
        assert published == machine.cards.inventory
