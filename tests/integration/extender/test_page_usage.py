"""How often, and of which nodes, the extender reads what the device plugins measure."""

import asyncio

import pytest

from extender.page import usage as page_usage
from extender.page.rules import UNREADABLE
from extender.page.usage import (
    FAILED,
    FRESH_SECONDS,
    NO_PLUGIN,
    NOT_LISTED,
    SILENT,
    PluginUsage,
    is_pod_address,
)
from gpushare.errors import ApiError
from tests.builders import node
from tests.fakes.clock import FakeClock
from tests.integration.extender.plugins import Plugins
from tests.unit.extender.scripted import Bench, bound

pytestmark = pytest.mark.integration


@pytest.fixture
async def plugins():
    bench = Bench(16, 16)
    for name in ("m", "o"):
        bench.cluster.node_changed(node(name, 16))
    bench.add(bound("a", 8), bound("b", 4, "GPU-1"))
    made = Plugins()
    await made.open(bench.cluster.ledger)
    yield made
    await made.close()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def usage(plugins, clock):
    return PluginUsage(plugins, "gpushare-system", clock, may_contact=bool)


async def test_viewers_share_a_reading_while_it_is_fresh(plugins, usage, clock):
    first = await usage.of(["n", "n"], {"n", "m"})
    assert set(first.nodes["n"].cards) == {"GPU-0", "GPU-1"}
    assert await usage.of(["n"], {"n", "m"}) == first
    assert plugins.asked == ["n"]
    clock.now += FRESH_SECONDS
    await usage.of(["n", "m"], {"n", "m"})
    assert plugins.asked == ["n", "n", "m"]


async def test_only_nodes_of_the_cluster_are_read(plugins, usage):
    found = await usage.of(["n", "../pods", "metadata.name=x"], {"n"})
    assert (list(found.nodes), plugins.asked) == (["n"], ["n"])


async def test_a_node_without_a_plugin_or_with_a_silent_one_says_so(plugins, usage):
    plugins.missing.add("m")
    await plugins.close()
    found = await usage.of(["m", "o"], {"m", "o"})
    assert found.nodes["m"].why == NO_PLUGIN
    assert found.nodes["o"].why == SILENT


async def test_a_plugin_with_unreadable_metrics_does_not_affect_other_nodes(plugins, usage):
    plugins.broken.add("m")
    found = await usage.of(["n", "m"], {"n", "m"})
    assert found.nodes["m"].why == UNREADABLE
    assert set(found.nodes["n"].cards) == {"GPU-0", "GPU-1"}


async def test_an_unexpected_failure_of_one_node_does_not_affect_others(
    plugins, usage, monkeypatch
):
    listed = plugins.list_page

    async def fail(collection, **options):
        if collection.field_selector == "spec.nodeName=m":
            raise IndexError("pop from empty list")
        return await listed(collection, **options)

    monkeypatch.setattr(plugins, "list_page", fail)
    found = await usage.of(["n", "m"], {"n", "m"})
    assert found.nodes["m"].why == FAILED
    assert set(found.nodes["n"].cards) == {"GPU-0", "GPU-1"}


@pytest.mark.parametrize(
    "metadata",
    [
        {"deletionTimestamp": "2026-01-01T00:00:00Z"},
        {"annotations": {"kubernetes.io/config.mirror": "x"}},
        {"ownerReferences": []},
        {"ownerReferences": [{"kind": "ReplicaSet", "controller": True}]},
    ],
)
async def test_only_running_pods_of_a_daemonset_are_contacted(plugins, usage, metadata):
    plugins.metadata = metadata
    assert (await usage.of(["n"], {"n"})).nodes["n"].why == NO_PLUGIN


async def test_a_plugin_at_a_loopback_address_is_not_contacted(plugins, clock):
    usage = PluginUsage(plugins, "gpushare-system", clock)
    assert (await usage.of(["n"], {"n"})).nodes["n"].why == NO_PLUGIN


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.0.0.7", True),
        ("fd00::7", True),
        ("127.0.0.1", False),
        ("::1", False),
        ("::ffff:127.0.0.1", False),
        ("169.254.169.254", False),
        ("fe80::1", False),
        ("224.0.0.1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("kubernetes.default", False),
    ],
)
def test_which_addresses_can_be_those_of_pods(address, expected):
    assert is_pod_address(address) == expected


async def test_a_rejected_list_is_not_blamed_on_the_plugin(plugins, usage, monkeypatch):
    async def reject(*_, **__):
        raise ApiError("the API server rejected the list")

    monkeypatch.setattr(plugins, "list_page", reject)
    assert (await usage.of(["n"], {"n"})).nodes["n"].why == NOT_LISTED


async def test_a_node_that_is_still_being_read_does_not_delay_the_others(
    plugins, usage, monkeypatch
):
    listed, answers = plugins.list_page, asyncio.Event()

    async def wait(collection, **options):
        if collection.field_selector == "spec.nodeName=m":
            await answers.wait()
        return await listed(collection, **options)

    monkeypatch.setattr(plugins, "list_page", wait)
    monkeypatch.setattr(page_usage, "ANSWER_SECONDS", 1)
    assert list((await usage.of(["n", "m"], {"n", "m"})).nodes) == ["n"]
    answers.set()
    monkeypatch.setattr(page_usage, "ANSWER_SECONDS", 30)
    assert list((await usage.of(["n", "m"], {"n", "m"})).nodes) == ["n", "m"]
