"""What stands on the Node: written only where it differs, and put right again."""

import asyncio
from contextlib import asynccontextmanager

import msgspec

from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.cards.state_file import Saved, StateFile
from deviceplugin.cards.survey import Terms, survey
from deviceplugin.report.node import NodeReport, difference
from gpushare.annotations import inventory
from gpushare.clock import SystemClock
from gpushare.contract import ANNOTATION_INVENTORY, RESOURCE_COUNT
from gpushare.errors import ApiError, OutcomeUnknown
from gpushare.objects.model import Node, NodeStatus, ObjectMeta
from tests.fakes.clock import FakeClock
from tests.fakes.driver import card
from tests.waiting import running

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
        self.changed = asyncio.Event()

    async def patch_node(self, name, patch, *, status) -> Node:
        assert (name, status) == ("n", True)
        if self.fails:
            raise self.fails.pop()
        self.patches.append(patch)
        text = patch.get("metadata", {}).get("annotations", self.now.annotations)
        amounts = {**self.now.capacity, **patch.get("status", {}).get("capacity", {})}
        meta = msgspec.structs.replace(self.now.metadata, annotations=dict(text))
        self.now = Node(meta, NodeStatus(capacity=amounts, allocatable=amounts))
        self.changed.set()
        return self.now

    async def create_event(self, namespace, event) -> None:
        self.events.append(event)
        self.changed.set()


@asynccontextmanager
async def reporting(api: Api, cards: NodeCards, folder):
    report = NodeReport(api, "n", cards, StateFile(folder), SystemClock())
    async with running(report.run()):
        yield report


def test_a_node_that_says_it_all_is_left_alone() -> None:
    assert difference(node(inventory.encode(INVENTORY), "2"), INVENTORY) == {}


def test_a_count_that_the_kubelet_has_zeroed_is_put_right() -> None:
    patch = difference(node(inventory.encode(INVENTORY), "0"), INVENTORY)
    assert patch == {
        "status": {"capacity": {RESOURCE_COUNT: "2"}, "allocatable": {RESOURCE_COUNT: "2"}}
    }


def test_an_unreadable_count_is_written_over() -> None:
    assert "status" in difference(node(inventory.encode(INVENTORY), "many"), INVENTORY)


async def test_inventory_and_count_are_written_in_one_patch_and_again_when_lost(tmp_path) -> None:
    api, cards = Api(), NodeCards(TERMS, None)
    cards.seen([card(0), card(1)])
    async with reporting(api, cards, tmp_path) as report, asyncio.timeout(5):
        report.replaced([node()])
        await api.changed.wait()
        assert set(api.patches[0]) == {"metadata", "status"}
        assert inventory.decode(api.now.annotations[ANNOTATION_INVENTORY]) == cards.inventory
        api.changed.clear()
        api.now = node(api.now.annotations[ANNOTATION_INVENTORY], "0")
        report.changed(api.now)
        await api.changed.wait()
    assert api.now.capacity[RESOURCE_COUNT] == "2"
    assert len(api.patches) == 2


async def test_a_node_that_was_made_anew_is_told_everything_again(tmp_path) -> None:
    api, cards = Api(), NodeCards(TERMS, Saved(INVENTORY))
    cards.seen([card(0), card(1)])
    async with reporting(api, cards, tmp_path) as report, asyncio.timeout(5):
        report.replaced([node()])
        await api.changed.wait()
        api.changed.clear()
        report.deleted(api.now)
        again = node()
        api.now = msgspec.structs.replace(
            again, metadata=msgspec.structs.replace(again.metadata, uid="another")
        )
        report.changed(api.now)
        await api.changed.wait()
    assert inventory.decode(api.now.annotations[ANNOTATION_INVENTORY]) == cards.inventory
    assert api.now.capacity[RESOURCE_COUNT] == "2"


async def test_a_blocked_node_says_so_and_promises_no_card(tmp_path) -> None:
    api, cards = Api(), NodeCards(TERMS, Saved(INVENTORY))
    cards.seen([card(0), card(1)])
    async with reporting(api, cards, tmp_path) as report, asyncio.timeout(5):
        report.replaced([node()])
        await api.changed.wait()
        api.changed.clear()
        cards.set_block("kubelet-pods", "the right get nodes/pods is missing")
        while len(api.patches) < 2:
            await api.changed.wait()
            api.changed.clear()
        told = inventory.decode(api.now.annotations[ANNOTATION_INVENTORY])
        assert not any(each.is_healthy for each in told.cards)
        cards.set_block("kubelet-pods", "")
        while len(api.patches) < 3 or not api.events:
            await api.changed.wait()
            api.changed.clear()
    told = inventory.decode(api.now.annotations[ANNOTATION_INVENTORY])
    assert all(each.is_healthy for each in told.cards)
    [event] = api.events
    assert (event["reason"], event["message"]) == (
        "GpushareNodeBlocked",
        "the right get nodes/pods is missing",
    )


async def test_a_card_that_is_lost_is_told(tmp_path) -> None:
    api, cards = Api(), NodeCards(TERMS, Saved(INVENTORY))
    cards.seen([card(0), card(1)])
    async with reporting(api, cards, tmp_path) as report, asyncio.timeout(5):
        report.replaced([node()])
        await api.changed.wait()
        api.changed.clear()
        cards.seen([card(0)])
        while len(api.patches) < 2:
            await api.changed.wait()
            api.changed.clear()
    told = inventory.decode(api.now.annotations[ANNOTATION_INVENTORY])
    assert [c.is_healthy for c in told.cards] == [True, False]


async def test_a_refused_write_is_tried_again(tmp_path) -> None:
    api, cards = Api(), NodeCards(TERMS, Saved(INVENTORY))
    api.fails = [OutcomeUnknown("no answer"), ApiError("forbidden", code=403)]
    async with reporting(api, cards, tmp_path) as report, asyncio.timeout(10):
        report.replaced([node()])
        await api.changed.wait()
    assert not api.fails


async def test_indexes_are_kept_on_disk_before_anyone_is_told(tmp_path) -> None:
    api, cards = Api(), NodeCards(TERMS, None)
    cards.seen([card(0), card(1)])
    async with reporting(api, cards, tmp_path) as report, asyncio.timeout(5):
        report.replaced([node()])
        await api.changed.wait()
    assert StateFile(tmp_path).read() == Saved(cards.inventory)


async def test_without_the_api_server_nothing_is_kept_that_it_may_contradict(tmp_path) -> None:
    api, cards = Api(), NodeCards(TERMS, None)
    cards.seen([card(0)])
    async with reporting(api, cards, tmp_path):
        await asyncio.sleep(0)
    assert StateFile(tmp_path).read() is None


async def test_a_unit_too_fine_is_an_event_on_the_node(tmp_path) -> None:
    api, cards = Api(), NodeCards(Terms(1), None)
    cards.seen([card(n, 81_920) for n in range(8)])
    async with reporting(api, cards, tmp_path) as report, asyncio.timeout(5):
        report.replaced([node()])
        while not api.events:
            await api.changed.wait()
            api.changed.clear()
    (event,) = api.events
    assert event["involvedObject"]["kind"] == "Node"
    assert "--memory-unit=4MiB" in event["message"]


async def test_what_an_operator_should_know_is_told_once_and_again_when_it_is_back(
    tmp_path,
) -> None:
    api, cards = Api(), NodeCards(Terms(1), None, recover_seconds=0.0)
    cards.seen([card(0, 81_920), card(1, 81_920)])
    async with reporting(api, cards, tmp_path) as report, asyncio.timeout(5):

        async def until_told(*reasons: str) -> None:
            while sorted(event["reason"] for event in api.events) != sorted(reasons):
                await api.changed.wait()
                api.changed.clear()

        report.replaced([node()])
        await until_told("DeviceListLarge", "CardUnitsMany")
        cards.seen([card(0, 81_920)])
        await until_told("DeviceListLarge", "CardUnitsMany", "CardUnhealthy")
        cards.seen([card(0, 81_920), card(1, 81_920)])
        while api.now.annotations.get(ANNOTATION_INVENTORY) != inventory.encode(cards.inventory):
            await api.changed.wait()
            api.changed.clear()
        cards.seen([card(0, 81_920)])
        await until_told("DeviceListLarge", "CardUnitsMany", "CardUnhealthy", "CardUnhealthy")
    assert "--memory-unit=2MiB" in api.events[0]["message"]
    assert card(1).uuid in api.events[-1]["message"]


async def test_what_is_owed_at_the_end_is_kept(tmp_path) -> None:
    api, clock = Api(), FakeClock()
    cards = NodeCards(TERMS, Saved(INVENTORY), clock=clock, recover_seconds=1000.0)
    async with reporting(api, cards, tmp_path):
        await asyncio.sleep(0)
        cards.seen([card(0)])
        cards.seen([card(0), card(1)])
        clock.now += 10.0
    assert StateFile(tmp_path).read().healths[card(1).uuid].owed == 990.0


async def test_a_binding_that_changes_is_told(tmp_path) -> None:
    api, cards = Api(), NodeCards(Terms(1024, binding="late"), Saved(INVENTORY))
    cards.seen([card(0), card(1)])
    async with reporting(api, cards, tmp_path) as report, asyncio.timeout(5):
        report.replaced([node()])
        await api.changed.wait()
        api.changed.clear()
        cards.set_binding("early")
        await api.changed.wait()
        cards.set_binding("early")
    assert inventory.decode(api.now.annotations[ANNOTATION_INVENTORY]).binding == "early"
    assert len(api.patches) == 2


async def test_whoever_chooses_the_binding_is_shown_the_node(tmp_path) -> None:
    shown: list[Node] = []
    cards = NodeCards(TERMS, Saved(INVENTORY))
    report = NodeReport(Api(), "n", cards, StateFile(tmp_path), SystemClock(), seen=shown.append)
    report.replaced([])
    wire = {
        "metadata": {"name": "n"},
        "status": {
            "nodeInfo": {
                "kubeletVersion": "v1.34.4",
                "containerRuntimeVersion": "containerd://2.2.9",
                "swap": {"capacity": 1},
            }
        },
    }
    found = msgspec.json.decode(msgspec.json.encode(wire), type=Node)
    report.replaced([found])
    report.changed(node())
    assert shown == [found, node()]
    info = found.status.node_info
    assert info is not None
    assert (info.container_runtime_version, info.kubelet_version) == (
        "containerd://2.2.9",
        "v1.34.4",
    )


async def test_events_that_do_not_land_hold_up_nothing_that_the_extender_reads(tmp_path) -> None:
    class Deaf(Api):
        async def create_event(self, namespace, event) -> None:
            self.events.append(event)
            await asyncio.Event().wait()

    api, cards = Deaf(), NodeCards(TERMS, Saved(INVENTORY))
    cards.seen([card(0)])
    async with reporting(api, cards, tmp_path) as report, asyncio.timeout(5):
        report.replaced([node()])
        await api.changed.wait()
    assert inventory.decode(api.now.annotations[ANNOTATION_INVENTORY]) == cards.inventory


async def test_a_plugin_that_leaves_says_so_and_the_next_takes_it_back_only_once_it_serves(
    tmp_path,
) -> None:
    api = Api()
    for is_first in (True, False):
        cards = NodeCards(TERMS, Saved(INVENTORY))
        cards.seen([card(0), card(1)])
        written = len(api.patches)
        async with reporting(api, cards, tmp_path) as report, asyncio.timeout(5):
            report.replaced([api.now])
            if is_first:
                await api.changed.wait()
            # The count is lost, which is what the next patch is about.
            api.changed.clear()
            report.changed(node(api.now.annotations[ANNOTATION_INVENTORY], "0"))
            await api.changed.wait()
            assert _is_leaving(api) is not is_first
            api.changed.clear()
            report.serves()
            if not is_first:
                await api.changed.wait()
                assert not _is_leaving(api)
        assert await report.announce_leaving()
        assert _is_leaving(api)
        assert len(api.patches) > written


def _is_leaving(api: Api) -> bool:
    return inventory.decode(api.now.annotations[ANNOTATION_INVENTORY]).is_leaving
