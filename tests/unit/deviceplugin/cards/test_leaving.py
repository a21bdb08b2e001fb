"""Devices leave the kubelet's list in two steps."""

from hypothesis import given, settings
from hypothesis import strategies as st

from deviceplugin.cards.held_devices import HeldDevices, Inherited
from deviceplugin.cards.leaving import LEAVING_SECONDS
from deviceplugin.cards.survey import Terms
from deviceplugin.driver.interface import PhysicalCard
from protos.deviceplugin.v1beta1 import api_pb2
from tests.fakes.driver import card
from tests.fakes.node_cards import FIRST, SECOND, Node

OLDER = [f"GPU-0-_-{number}" for number in range(4)]


def listed(node: Node) -> dict[str, str]:
    """What a kubelet that reads the list now knows."""
    sent = api_pb2.ListAndWatchResponse.FromString(node.cards.next_message())
    assert len(sent.devices) == len({device.ID for device in sent.devices})
    return {device.ID: device.health for device in sent.devices}


def inherit(node: Node, count: int) -> None:
    """Let pods of Aliyun gpushare hold that many devices."""
    known = [each for each in listed(node) if each not in OLDER]
    mine = Inherited(frozenset(OLDER[:count]), frozenset(known[:count]))
    node.cards.set_held(HeldDevices(inherited={FIRST.uuid: mine} if count else {}))


def test_a_device_that_leaves_the_list_is_unhealthy_for_a_minute_first(node: Node) -> None:
    node.show(FIRST, SECOND)
    before = listed(node)
    inherit(node, 4)
    assert len(listed(node)) == len(before) + 4
    node.show(FIRST, SECOND, after=LEAVING_SECONDS)
    assert len(listed(node)) == len(before)
    inherit(node, 1)
    leaving = dict.fromkeys(OLDER[1:], "Unhealthy")
    assert leaving.items() <= listed(node).items()
    version = node.cards.version
    node.show(FIRST, SECOND, after=LEAVING_SECONDS - 1)
    assert leaving.items() <= listed(node).items()
    node.show(FIRST, SECOND, after=2)
    assert node.cards.version > version
    assert not leaving.keys() & listed(node).keys()


SHOWN = st.lists(
    st.sampled_from([FIRST, SECOND, card(0, 8_000), card(2, 40_960)]),
    unique_by=lambda seen: seen.uuid,
)
TOO_MANY = st.just([FIRST, card(3, 2**30), card(4, 2**30)])  # no list can be offered


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from([1.0, 30.0, 61.0]),
            st.one_of(SHOWN, TOO_MANY, st.integers(0, 4), st.sampled_from(["", "why"])),
        ),
        min_size=2,
        max_size=8,
    )
)
@settings(max_examples=100)
def test_a_healthy_device_never_leaves_the_list_within_a_minute(
    steps: list[tuple[float, list[PhysicalCard] | int | str]],
) -> None:
    node = Node(None, Terms(4096))
    healthy_at: dict[str, float] = {}
    for seconds, step in [(0.0, [FIRST, SECOND]), *steps]:
        node.clock.now += seconds
        match step:
            case list():
                node.show(*step)
            case int():
                inherit(node, step)
            case str():
                node.cards.set_block("test", step)
        found = listed(node)
        recent = {each for each, at in healthy_at.items() if node.clock.now - at < LEAVING_SECONDS}
        assert recent <= found.keys()
        healthy_at |= {each: node.clock.now for each, at in found.items() if at == "Healthy"}
