"""The Node is written only where it differs, and corrected when it changes."""

import asyncio
import json
from contextlib import asynccontextmanager

import msgspec

from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.cards.state_file import Saved, StateFile
from deviceplugin.cards.survey import Terms, survey
from deviceplugin.driver.interface import CardEvent
from deviceplugin.report.node import NodeReport, difference
from gpushare.annotations import inventory
from gpushare.cards.model import Inventory
from gpushare.clock import SystemClock
from gpushare.contract import (
    ANNOTATION_CORDON_REASONS,
    ANNOTATION_CORDONED_CARDS,
    ANNOTATION_INVENTORY,
    CORDONED_BY_DEFRAGMENT,
    RESOURCE_COUNT,
)
from gpushare.errors import ApiError, OutcomeUnknown
from gpushare.objects.model import Node, NodeStatus, ObjectMeta
from tests.fakes.clock import FakeClock
from tests.fakes.driver import card
from tests.waiting import eventually, running

TERMS = Terms(1024)
INVENTORY = survey(None, [card(0), card(1)], TERMS).inventory


def node(annotation: str | None = None, count: str | None = None) -> Node:
    amounts = {} if count is None else {RESOURCE_COUNT: count}
    return Node(
        ObjectMeta(
            name="n",
            uid="u",
            annotations={} if annotation is None else {ANNOTATION_INVENTORY: annotation},
        ),
        NodeStatus(capacity=amounts, allocatable=amounts),
    )


class Api:
    """One Node that can be patched, as the API server merges."""

    def __init__(self) -> None:
        self.patches: list[dict] = []
        self.events: list[dict] = []
        self.fails: list[ApiError] = []
        self.now = node()

    async def patch_node(self, name, patch, *, status) -> Node:
        assert (name, status) == ("n", True)
        if self.fails:
            raise self.fails.pop()
        self.patches.append(patch)
        text = patch.get("metadata", {}).get("annotations", self.now.annotations)
        amounts = {**self.now.capacity, **patch.get("status", {}).get("capacity", {})}
        meta = msgspec.structs.replace(self.now.metadata, annotations=dict(text))
        self.now = Node(meta, NodeStatus(capacity=amounts, allocatable=amounts))
        return self.now

    async def create_event(self, namespace, event) -> None:
        self.events.append(event)

    async def patched(self, times: int) -> Inventory:
        """Return the published inventory after so many patches in all."""
        await eventually(lambda: len(self.patches) >= times, seconds=10)
        assert len(self.patches) == times
        return self.published

    @property
    def published(self) -> Inventory:
        return inventory.decode(self.now.annotations[ANNOTATION_INVENTORY])

    @property
    def reasons(self) -> list[str]:
        return sorted(event["reason"] for event in self.events)


@asynccontextmanager
async def reporting(api: Api, cards: NodeCards, folder, *, first: Node | None = None):
    """Run the report of a Node that the watch shows as ``first``."""
    report = NodeReport(api, "n", cards, StateFile(folder), SystemClock())
    async with running(report.run()):
        report.replaced([first or node()])
        yield report


def two_cards(**words) -> NodeCards:
    cards = NodeCards(TERMS, Saved(INVENTORY), **words)
    cards.seen([card(0), card(1)])
    return cards


def test_a_correct_node_is_not_patched() -> None:
    assert difference(node(inventory.encode(INVENTORY), "2"), INVENTORY) == {}


def test_a_count_that_the_kubelet_has_zeroed_is_corrected() -> None:
    patch = difference(node(inventory.encode(INVENTORY), "0"), INVENTORY)
    assert patch == {
        "status": {"capacity": {RESOURCE_COUNT: "2"}, "allocatable": {RESOURCE_COUNT: "2"}}
    }


def test_an_invalid_count_is_overwritten() -> None:
    assert "status" in difference(node(inventory.encode(INVENTORY), "many"), INVENTORY)


async def test_inventory_and_count_are_written_in_one_patch_and_again_when_lost(tmp_path) -> None:
    api, cards = Api(), NodeCards(TERMS, None)
    cards.seen([card(0), card(1)])
    async with reporting(api, cards, tmp_path) as report:
        assert await api.patched(1) == cards.inventory
        assert set(api.patches[0]) == {"metadata", "status"}
        assert StateFile(tmp_path).read() == Saved(cards.inventory), "indexes are saved before"
        api.now = node(api.now.annotations[ANNOTATION_INVENTORY], "0")
        report.changed(api.now)
        await api.patched(2)
    assert api.now.capacity[RESOURCE_COUNT] == "2"


async def test_a_recreated_node_gets_the_whole_inventory_again(tmp_path) -> None:
    api, cards = Api(), two_cards()
    async with reporting(api, cards, tmp_path) as report:
        await api.patched(1)
        report.deleted(api.now)
        again = node()
        api.now = msgspec.structs.replace(
            again, metadata=msgspec.structs.replace(again.metadata, uid="another")
        )
        report.changed(api.now)
        assert await api.patched(2) == cards.inventory
    assert api.now.capacity[RESOURCE_COUNT] == "2"


async def test_a_blocked_node_publishes_unhealthy_gpus_and_an_event(tmp_path) -> None:
    api, cards = Api(), two_cards()
    async with reporting(api, cards, tmp_path):
        await api.patched(1)
        cards.set_block("kubelet-pods", "the right get nodes/pods is missing")
        assert not any(each.is_healthy for each in (await api.patched(2)).cards)
        await eventually(lambda: api.events)
        cards.set_block("kubelet-pods", "")
        assert all(each.is_healthy for each in (await api.patched(3)).cards)
    [event] = api.events
    assert (event["reason"], event["message"]) == (
        "GpushareNodeBlocked",
        "the right get nodes/pods is missing",
    )


def cordoning(shown: Node, uuid: str, reason: str = "fan") -> Node:
    annotations = {
        **shown.annotations,
        ANNOTATION_CORDONED_CARDS: uuid,
        ANNOTATION_CORDON_REASONS: json.dumps({uuid: reason}),
    }
    meta = msgspec.structs.replace(shown.metadata, annotations=annotations)
    return msgspec.structs.replace(shown, metadata=meta)


async def test_a_gpu_that_the_node_no_longer_cordons_counts_as_reset(tmp_path) -> None:
    clock = FakeClock()
    api, cards = Api(), two_cards(clock=clock)
    cards.seen([card(0), card(1)], [CardEvent(card(1).uuid, 48)])
    async with reporting(api, cards, tmp_path) as report:
        await api.patched(1)
        shown = api.now
        for each in (
            cordoning(shown, card(1).uuid, CORDONED_BY_DEFRAGMENT),
            shown,
            cordoning(shown, card(1).uuid),
            cordoning(shown, card(0).uuid),
        ):
            clock.now += 10_000
            cards.seen([card(0), card(1)])
            assert [c.is_healthy for c in cards.inventory.cards] == [True, False]
            report.changed(each)
        for _ in range(2):
            clock.now += 10_000
            cards.seen([card(0), card(1)])
        assert all(each.is_healthy for each in cards.inventory.cards)


async def test_a_lost_gpu_is_published_as_unhealthy(tmp_path) -> None:
    api, cards = Api(), two_cards()
    async with reporting(api, cards, tmp_path):
        await api.patched(1)
        cards.seen([card(0)])
        assert [c.is_healthy for c in (await api.patched(2)).cards] == [True, False]


async def test_a_rejected_patch_is_retried(tmp_path) -> None:
    api = Api()
    api.fails = [OutcomeUnknown("no answer"), ApiError("forbidden", code=403)]
    async with reporting(api, two_cards(), tmp_path):
        await api.patched(1)
    assert not api.fails


async def test_without_the_api_server_nothing_is_saved_that_the_node_may_contradict(
    tmp_path,
) -> None:
    cards = NodeCards(TERMS, None)
    cards.seen([card(0)])
    report = NodeReport(Api(), "n", cards, StateFile(tmp_path), SystemClock())
    async with running(report.run()):
        await asyncio.sleep(0)
    assert StateFile(tmp_path).read() is None


async def test_a_memory_unit_that_is_too_small_is_an_event_on_the_node(tmp_path) -> None:
    api, cards = Api(), NodeCards(Terms(1), None)
    cards.seen([card(n, 81_920) for n in range(8)])
    async with reporting(api, cards, tmp_path):
        await eventually(lambda: api.events)
    (event,) = api.events
    assert event["involvedObject"]["kind"] == "Node"
    assert "--memory-unit=4MiB" in event["message"]


async def test_each_notice_is_one_event_and_another_one_when_it_returns(tmp_path) -> None:
    api, cards = Api(), NodeCards(Terms(1), None, recover_seconds=0.0)
    both = [card(0, 81_920), card(1, 81_920)]
    cards.seen(both)
    warnings = ["CardUnitsMany", "DeviceListLarge"]
    async with reporting(api, cards, tmp_path):
        await eventually(lambda: api.reasons == warnings)
        cards.seen(both[:1])
        await eventually(lambda: api.reasons == ["CardUnhealthy", *warnings])
        await eventually(lambda: api.patches and api.published == cards.inventory)
        written = len(api.patches)
        cards.seen(both)
        await api.patched(written + 1)
        cards.seen(both[:1])
        await eventually(lambda: api.reasons == ["CardUnhealthy", "CardUnhealthy", *warnings])
    assert "--memory-unit=2MiB" in api.events[0]["message"]
    assert card(1).uuid in api.events[-1]["message"]


async def test_the_seconds_to_recovery_are_saved_at_the_end(tmp_path) -> None:
    clock = FakeClock()
    cards = NodeCards(TERMS, Saved(INVENTORY), clock=clock, recover_seconds=1000.0)
    async with reporting(Api(), cards, tmp_path):
        await asyncio.sleep(0)
        cards.seen([card(0)])
        cards.seen([card(0), card(1)])
        clock.now += 10.0
    assert StateFile(tmp_path).read().healths[card(1).uuid].owed == 990.0


async def test_a_changed_binding_is_published_once(tmp_path) -> None:
    api, cards = Api(), two_cards()
    async with reporting(api, cards, tmp_path):
        await api.patched(1)
        cards.set_binding("early")
        assert (await api.patched(2)).binding == "early"
        cards.set_binding("early")
    assert len(api.patches) == 2


async def test_the_binding_gets_each_node_that_the_watch_shows(tmp_path) -> None:
    shown: list[Node] = []
    cards = NodeCards(TERMS, Saved(INVENTORY))
    report = NodeReport(Api(), "n", cards, StateFile(tmp_path), SystemClock(), seen=shown.append)
    report.replaced([])
    versions = {"kubeletVersion": "v1.34.4", "containerRuntimeVersion": "containerd://2.2.9"}
    status = {"nodeInfo": {**versions, "swap": {"capacity": 1}}}
    wire = {"metadata": {"name": "n"}, "status": status}
    found = msgspec.json.decode(msgspec.json.encode(wire), type=Node)
    report.replaced([found])
    report.changed(node())
    assert shown == [found, node()]
    info = found.status.node_info
    assert info is not None
    assert [info.kubelet_version, info.container_runtime_version] == [*versions.values()]


async def test_events_that_hang_do_not_delay_the_inventory(tmp_path) -> None:
    class Hanging(Api):
        async def create_event(self, namespace, event) -> None:
            await asyncio.Event().wait()

    api, cards = Hanging(), NodeCards(TERMS, Saved(INVENTORY))
    cards.seen([card(0)])
    async with reporting(api, cards, tmp_path):
        assert await api.patched(1) == cards.inventory


async def test_a_leaving_plugin_marks_the_node_until_the_next_one_serves(tmp_path) -> None:
    api = Api()
    for is_first in (True, False):
        written = len(api.patches)
        async with reporting(api, two_cards(), tmp_path, first=api.now) as report:
            if is_first:
                await api.patched(1)
            # The count is lost, which is what the next patch is about.
            before = len(api.patches)
            report.changed(node(api.now.annotations[ANNOTATION_INVENTORY], "0"))
            assert (await api.patched(before + 1)).is_leaving is not is_first
            report.serves()
            if not is_first:
                assert not (await api.patched(before + 2)).is_leaving
        assert await report.announce_leaving()
        assert api.published.is_leaving
        assert len(api.patches) > written
