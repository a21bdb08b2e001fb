"""Each fault of a node is reported with its fix, and a correct node has none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.check.rules import CONTESTED_SECONDS, about_node, about_stream, is_rival
from gpushare.objects.model import Node, NodeStatus, ObjectMeta


def node(label: str | None = "true") -> Node:
    return Node(ObjectMeta(name="n", labels={} if label is None else {"gpushare": label}))


def whole_cards(amount: str | int) -> Node:
    capacity = {"nvidia.com/gpu": amount, "aliyun.com/gpu-mem": "30"}
    return Node(ObjectMeta(name="n", labels={"gpushare": "true"}), NodeStatus(capacity=capacity))


def test_a_correct_node_has_no_findings() -> None:
    assert about_node(node(), ["other.sock"]) == []
    assert about_node(whole_cards("0"), []) == []
    assert about_node(None, []) == [], "the API server is away, which says nothing of the node"


@pytest.mark.parametrize("amount", ["1", 8, "2k", "rubbish"])
def test_a_plugin_for_whole_gpus_is_dangerous(amount) -> None:
    (found,) = about_node(whole_cards(amount), [])
    assert (found.reason, found.is_dangerous) == ("WholeCardPlugin", True)
    assert str(amount) in found.text
    assert "nvidia.com/gpu.deploy.device-plugin=false" in found.text


@pytest.mark.parametrize("name", ["nvidia.sock", "nvidia-gpu.sock", "nvidia-gpu.shared.sock"])
def test_a_plugin_for_whole_gpus_is_recognized_by_its_socket(name: str) -> None:
    assert is_rival(name)
    (found,) = about_node(None, [name])
    assert (found.reason, found.is_dangerous) == ("WholeCardPlugin", True)
    assert name in found.text


def test_a_plugin_for_mig_devices_is_allowed() -> None:
    assert not is_rival("nvidia-mig-1g.5gb.sock")
    assert not is_rival("gpushare.sock")


def test_aliyun_gpushares_plugin_on_the_same_node_is_dangerous() -> None:
    assert is_rival("aliyungpushare.sock")
    (found,) = about_node(node(), ["aliyungpushare.sock"])
    assert (found.reason, found.is_dangerous) == ("SecondPlugin", True)
    assert "gpushare-device-plugin-ds" in found.text


@pytest.mark.parametrize(
    ("label", "shown"), [(None, "missing"), ("false", "'false'"), ("True", "'True'"), ("", "''")]
)
def test_a_missing_or_wrong_label_is_a_remark(label, shown) -> None:
    (found,) = about_node(node(label), [])
    assert (found.reason, found.is_dangerous) == ("NodeNotLabelled", False)
    assert f"gpushare is {shown}" in found.text
    assert "kubectl label node n gpushare=true" in found.text


def test_a_list_that_ends_repeatedly_means_a_second_plugin() -> None:
    assert about_stream([100.0, 101.0], 102.0, ["x.sock"]) == []
    (found,) = about_stream([100.0, 101.0, 102.0], 103.0, ["x.sock"])
    assert (found.reason, found.is_dangerous) == ("SecondPlugin", True)
    assert "3 times" in found.text
    assert "x.sock" in found.text


@given(st.lists(st.floats(0, 1e6)), st.floats(0, 1e6))
def test_old_ends_of_the_list_do_not_count(ended_at: list[float], now: float) -> None:
    old = [at for at in ended_at if at <= now - CONTESTED_SECONDS]
    assert about_stream(old, now, []) == []
