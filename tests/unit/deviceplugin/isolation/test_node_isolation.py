"""What a node states of its GPUs' limits, through a restart of the plugin."""

from dataclasses import replace

import pytest

from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.cards.state_file import Saved
from deviceplugin.cards.survey import Terms
from tests.fakes.driver import card

ABLE = card(0, why_no_limit="")
UNABLE = card(1, why_no_limit="driver 580 cannot limit memory")


def stated(cards: NodeCards) -> list[tuple[str, str]]:
    return [(each.enforces, each.why_not_more) for each in cards.inventory.cards]


def kept() -> Saved:
    """What a plugin has saved on whose node the driver limits one GPU's memory."""
    cards = NodeCards(Terms(1024), None)
    cards.adopt(None)
    cards.set_why_no_limit("")
    cards.seen([ABLE, UNABLE])
    assert [what for what, _ in stated(cards)] == ["driver", "nothing"]
    saved = cards.saved()
    assert saved is not None
    return saved


def test_a_restarted_plugin_states_the_same_before_it_has_seen_driver_and_node():
    cards = NodeCards(Terms(1024), kept())
    assert [what for what, _ in stated(cards)] == ["driver", "nothing"]
    cards.set_why_no_limit("")
    cards.seen([ABLE, UNABLE])
    assert stated(cards)[0] == ("driver", "")


@pytest.mark.parametrize(("by_frameworks", "less"), [(False, "nothing"), (True, "framework")])
def test_a_gpu_that_the_driver_does_not_limit_may_be_limited_by_frameworks(by_frameworks, less):
    cards = NodeCards(Terms(1024, framework_limits=by_frameworks), None)
    cards.set_why_no_limit("")
    cards.seen([ABLE, UNABLE])
    assert stated(cards) == [("driver", ""), (less, UNABLE.why_no_limit)]


def test_limits_that_are_switched_off_end_at_once():
    cards = NodeCards(Terms(1024, memory_limit="off"), kept())
    assert stated(cards) == [("nothing", "--memory-limit=off is set")] * 2


def test_limits_that_cannot_be_read_are_not_promised():
    cards = NodeCards(Terms(1024), None)
    cards.set_why_no_limit("")
    cards.doubt_limits("cgroups", "no pod's cgroup is visible")
    cards.seen([ABLE])
    assert stated(cards) == [("nothing", "no pod's cgroup is visible")]
    cards.doubt_limits("cgroups", "")
    assert stated(cards) == [("driver", "")]


def test_frameworks_are_stated_only_where_containers_get_their_variables():
    cards = NodeCards(Terms(1024, framework_limits=True), None)
    cards.set_why_no_limit("")
    cards.doubt_limits("cgroups", "no pod's cgroup is visible")
    cards.seen([ABLE])
    assert stated(cards)[0][0] == "nothing"


def test_what_a_driver_can_may_change():
    cards = NodeCards(Terms(1024), None)
    cards.set_why_no_limit("")
    cards.seen([ABLE])
    cards.seen([replace(ABLE, why_no_limit="driver 580 cannot")])
    assert stated(cards) == [("nothing", "driver 580 cannot")]
