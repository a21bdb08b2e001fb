"""Inherited devices stay listed, and the number of a node's devices does not change."""

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.allocation import allocate_response
from deviceplugin.allocation.older_plugin import inherited
from deviceplugin.cards import device_list
from deviceplugin.cards.held_devices import Inherited, message
from deviceplugin.kubelet.checkpoint import Entry
from gpushare.cards.model import Card, Health, Inventory
from protos.deviceplugin.v1beta1 import api_pb2

UNITS = 40
CARDS = (
    Card(0, "GPU-0", UNITS, tag="aa", minor=1),
    Card(1, "GPU-1", UNITS, Health.UNHEALTHY, tag="bb", minor=0),
)
NODE = Inventory(1, CARDS)


def older(uid: str, minor: str, numbers: range, uuid: str = "GPU-0") -> Entry:
    """What the older plugin left in the checkpoint: the UUID in its IDs says nothing."""
    ids = frozenset(f"{uuid}-_-{number}" for number in numbers)
    answer = allocate_response.early({"NVIDIA_VISIBLE_DEVICES": minor}).SerializeToString()
    return Entry(uid, "main", ids, answer)


def ours(uid: str, tag: str, units: set[int]) -> Entry:
    return Entry(uid, "main", frozenset(device_list.device_id(tag, unit) for unit in units), b"")


def listed(found: dict[str, Inherited]) -> dict[str, str]:
    sent = api_pb2.ListAndWatchResponse.FromString(message(NODE, found, {}))
    return {device.ID: device.health for device in sent.devices}


def test_inherited_devices_replace_units_of_their_containers_gpu() -> None:
    found = inherited([older("p", "0", range(5))], NODE, {})
    assert found["GPU-1"].ids == {f"GPU-0-_-{number}" for number in range(5)}
    assert list(found) == ["GPU-1"], "minor 0 is this card, whatever the ID says"
    shown = listed(found)
    assert shown["GPU-0-_-3"] == "Unhealthy", "as the card is"
    assert len(shown) == 2 * UNITS


def test_devices_of_an_unknown_gpu_stay_listed() -> None:
    unreadable = Entry("p", "main", frozenset({"old"}), b"\xff")
    late = Entry(
        "q", "main", frozenset({"older"}), allocate_response.late("share", {}).SerializeToString()
    )
    for entry in (unreadable, late, older("r", "no-gpu-has-5MiB-to-run", range(5))):
        found = inherited([entry], NODE, {})
        assert entry.device_ids <= listed(found).keys()
        assert len(listed(found)) == 2 * UNITS
    assert inherited([late], Inventory(1, ()), {}) == {}


def test_a_list_that_would_be_too_long_is_as_without() -> None:
    large = Inventory(1, (Card(0, "GPU-0", device_list.MAX_DEVICES - 10, tag="aa", minor=1),))
    found = inherited([older("p", "1", range(500))], large, {})
    assert found
    assert message(large, found, {}) == device_list.message(large)


amounts = st.lists(st.tuples(st.sampled_from("01"), st.integers(1, 12)), max_size=4)
own = st.sets(st.integers(0, UNITS - 1), max_size=UNITS)


@given(amounts, own, own, own)
def test_whatever_is_held_stays_listed_and_the_total_stays_while_there_is_room(
    held: list[tuple[str, int]], first: set[int], second: set[int], later: set[int]
) -> None:
    start = 0
    entries = [ours("a", "aa", first), ours("b", "bb", second)]
    for number, (minor, amount) in enumerate(held):
        entries.append(older(f"older-{number}", minor, range(start, start + amount)))
        start += amount
    before = inherited(entries, NODE, {})
    entries[0] = ours("c", "aa", later)
    for found, used in ((before, first), (inherited(entries, NODE, before), later)):
        shown = listed(found)
        in_use = frozenset[str]().union(*(entry.device_ids for entry in entries[1:]))
        in_use |= ours("", "aa", used).device_ids
        assert in_use <= shown.keys()
        crowded = sum(amount for minor, amount in held if minor == "1") + len(used) > UNITS
        crowded |= sum(amount for minor, amount in held if minor == "0") + len(second) > UNITS
        assert crowded or len(shown) == 2 * UNITS


@given(own, st.integers(1, 10))
def test_a_unit_that_was_free_to_be_given_away_stays_listed_while_nothing_new_is_inherited(
    taken: set[int], amount: int
) -> None:
    old = older("p", "1", range(amount))
    before = inherited([old], NODE, {})
    left_out = before["GPU-0"].left_out
    free = {unit for unit in taken if device_list.device_id("aa", unit) not in left_out}
    assert inherited([old, ours("a", "aa", free)], NODE, before) == before
