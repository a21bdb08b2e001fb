"""The verbs over HTTP, in kube-scheduler's exact form and in invalid ones."""

import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer
from msgspec.structs import replace

from extender.metrics.nodes import NodeMetrics
from extender.routes import Routes
from gpushare.answers import inspect
from gpushare.contract import ANNOTATION_CARDS
from tests.builders import node, pod
from tests.unit.extender.scripted import PREFIX, Bench, bound, wire_pod

BIND = {"PodName": "a", "PodNamespace": "default", "PodUID": "uid-a", "Node": "n"}


@pytest.fixture
async def bench():
    made = Bench(16, 16)
    made.cluster.node_changed(node("full", 8))
    made.cluster.node_changed(node("small", 4))
    made.add(bound("other", 8, node="full"))
    return made


async def filter_call(client, *names, units="8", **meta):
    body = {"Pod": wire_pod(units, **meta), "Nodes": None, "NodeNames": list(names)}
    response = await client.post(f"{PREFIX}/filter", json=body)
    assert response.status == 200
    return await response.json()


async def test_filter_sorts_nodes_and_says_why(client):
    answer = await filter_call(client, "n", "full", "small", "cpu")
    assert answer["NodeNames"] == ["n"]
    assert answer["FailedNodes"] == {}
    rejected = answer["FailedAndUnresolvableNodes"]
    assert rejected["full"] == "no single GPU has enough free aliyun.com/gpu-mem"
    assert set(rejected) == {"full", "small", "cpu"}
    assert answer["Error"] == ""


@pytest.mark.parametrize("requests", [{}, {"cpu": "1"}, {"nvidia.com/gpu": "1"}])
async def test_a_pod_of_no_concern_is_told_what_kube_schedulers_configuration_lacks(
    client, requests
):
    whole = wire_pod()
    whole["spec"]["containers"][0]["resources"] = {"limits": requests}
    body = {"Pod": whole, "Nodes": None, "NodeNames": ["n", "cpu"]}
    response = await client.post(f"{PREFIX}/filter", json=body)
    answer = await response.json()
    assert (response.status, answer["NodeNames"], answer["Error"]) == (200, [], "")
    for text in answer["FailedAndUnresolvableNodes"].values():
        assert "kube-scheduler should not ask gpushare about it" in text
        assert "managedResources that `gpushare scheduler-config` prints" in text


async def test_filter_reserves_nothing(client, bench):
    for _ in range(3):
        assert (await filter_call(client, "n", units="16"))["NodeNames"] == ["n"]
    assert bench.held == [(0, 0), (0, 0)]


async def test_a_version_that_the_watch_has_not_shown_yet_counts_as_the_call_has_it(client, bench):
    shown = pod("a", 8)
    bench.add(replace(shown, metadata=replace(shown.metadata, resource_version="5")))
    for version, units, fits in (("5", "8", ["n"]), ("6", "17", []), ("7", "8", ["n"])):
        answer = await filter_call(client, "n", units=units, resourceVersion=version)
        assert answer["NodeNames"] == fits


async def test_an_empty_list_of_names_is_answered_with_an_empty_list(client):
    assert (await filter_call(client))["NodeNames"] == []


async def test_full_nodes_are_returned_unchanged(client):
    nodes = [
        {"metadata": {"name": name}, "status": {"nodeInfo": {"kept": name}}}
        for name in ("n", "small")
    ]
    body = {"Pod": wire_pod(), "Nodes": {"metadata": {}, "items": nodes}, "NodeNames": None}
    response = await client.post(f"{PREFIX}/filter", json=body)
    answer = await response.json()
    assert answer["Nodes"]["items"] == nodes[:1]
    assert answer["NodeNames"] is None
    assert set(answer["FailedAndUnresolvableNodes"]) == {"small"}


async def test_of_many_nodes_the_best_few_are_returned_by_name_or_in_full(client, bench):
    names = [f"many-{i:02}" for i in range(30)]
    for name in names:
        bench.cluster.node_changed(node(name, 32))
    answer = await filter_call(client, *names, "full", "n")
    assert answer["NodeNames"] == ["n", *names[:7]]
    assert answer["FailedNodes"] == answer["FailedAndUnresolvableNodes"] == {}
    nodes = [{"metadata": {"name": name}, "spec": {"podCIDR": name}} for name in names]
    body = {"Pod": wire_pod(uid="uid-b"), "Nodes": {"items": nodes}, "NodeNames": None}
    answer = await (await client.post(f"{PREFIX}/filter", json=body)).json()
    assert answer["Nodes"]["items"] == nodes[:8]


@pytest.mark.parametrize(
    "units",
    ["0", "-8", "1.5", "0.5", "8Gi", "8 GiB", "1e99", "1e400", "99999999999999999999", ""],
)
async def test_an_invalid_amount_fails_on_every_node_with_a_text(client, bench, units):
    answer = await filter_call(client, "n", "full", "nowhere", units=units)
    assert answer["NodeNames"] == []
    assert set(answer["FailedAndUnresolvableNodes"]) == {"n", "full", "nowhere"}
    assert all("gpu-mem" in text for text in answer["FailedAndUnresolvableNodes"].values())
    assert bench.held == [(0, 0), (0, 0)]


async def test_prioritize_returns_a_list_of_distinct_scores(client, bench):
    for name in ("same-a", "same-b"):
        bench.cluster.node_changed(node(name, 32))
    names = ["same-b", "full", "n", "same-a"]
    body = {"Pod": wire_pod(), "Nodes": None, "NodeNames": names}
    response = await client.post(f"{PREFIX}/prioritize", json=body)
    assert response.status == 200
    assert await response.json() == [
        {"Host": "n", "Score": 450},
        {"Host": "same-a", "Score": 300},
        {"Host": "same-b", "Score": 150},
        {"Host": "full", "Score": 0},
    ]
    full = {"items": [{"metadata": {"name": name}} for name in names]}
    body = {"Pod": wire_pod(), "Nodes": full, "NodeNames": None}
    response = await client.post(f"{PREFIX}/prioritize", json=body)
    assert [each["Host"] for each in await response.json()] == ["n", "same-a", "same-b", "full"]
    body = {"Pod": wire_pod(), "Nodes": None, "NodeNames": []}
    assert await (await client.post(f"{PREFIX}/prioritize", json=body)).json() == []
    assert bench.held == [(0, 0), (0, 0)]


async def test_an_invalid_annotation_fails_on_every_node_with_its_text(client):
    wishes = {"gpushare.aliyun.com/card-policy": "tight"}
    answer = await filter_call(client, "n", "full", annotations=wishes)
    assert answer["NodeNames"] == []
    assert set(answer["FailedAndUnresolvableNodes"]) == {"n", "full"}
    assert "'tight': write binpack or spread" in answer["FailedAndUnresolvableNodes"]["n"]
    body = {"Pod": wire_pod(annotations=wishes), "Nodes": None, "NodeNames": ["n"]}
    assert (await client.post(f"{PREFIX}/prioritize", json=body)).status == 400


async def test_inspect_shows_cordoned_gpus(client, bench):
    for cordoned, flags, problem in (
        ("GPU-1", [False, True], ""),
        ("GPU-9", [False, False], "names 'GPU-9'"),
    ):
        made = node("n", 16, 16)
        made.annotations["gpushare.aliyun.com/cordoned-cards"] = cordoned
        bench.cluster.node_changed(made)
        [shown] = (await (await client.get(f"{PREFIX}/inspect/n")).json())["nodes"]
        assert [card["cordoned"] for card in shown["devs"]] == flags
        assert problem in shown["problem"]
    assert [told[1] for told in bench.told] == ["GpushareCordonUnreadable"]


BAD_BODIES = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"x"',
    b"\xff\xfe",
    b'{"NodeNames":["n"]}',
    b'{"Pod":{"metadata":{}},"NodeNames":"n"}',
    b'{"Pod":{"metadata":{}},"NodeNames":[1]}',
    b'{"Pod":{"metadata":{"annotations":{"gpushare.aliyun.com/cards":1}}},"NodeNames":["n"]}',
    b'{"Pod":{"metadata":{}}}',
    b'{"Pod":{"metadata":{}},"Nodes":{"items":[{}]}}',
    b'{"Pod":' + b"[" * 20000,
    b'{"Pod":7,"NodeNames":[]}',
    b'{"PodName":1,"PodNamespace":"default","PodUID":"x","Node":"n1"}',
    b'{"Pod":{"metadata":{"name":"\xc3("}},"NodeNames":["n"],"PodName":"\xc3("}',
    b'{"Pod":{"metadata":{}},"Nodes":{"items":[{"metadata":{"name":"\xc3("}}]}}',
]


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt", "bind"])
@pytest.mark.parametrize("body", BAD_BODIES, ids=range(len(BAD_BODIES)))
async def test_an_invalid_body_is_a_clear_error(client, bench, verb, body):
    response = await client.post(f"{PREFIX}/{verb}", data=body)
    text = await response.text()
    assert response.status == 400
    assert "Error" in msgspec.json.decode(text)
    assert "Traceback" not in text
    assert bench.held == [(0, 0), (0, 0)]


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt", "bind"])
async def test_a_body_with_a_false_content_encoding_is_a_clear_error(client, verb):
    headers = {"Content-Encoding": "gzip"}
    response = await client.post(f"{PREFIX}/{verb}", data=b"xx", headers=headers)
    assert response.status == 400
    assert "cannot be read" in await response.text()


async def test_a_rejected_bind_is_a_200_with_the_reason(client, bench):
    bench.add(pod("a", 17))
    response = await client.post(f"{PREFIX}/bind", json=BIND)
    answer = await response.json()
    assert response.status == 200
    assert "large enough" in answer["Error"]
    assert len(answer["Error"]) <= 300


async def test_a_bind_without_a_uid_is_rejected(client):
    assert (await client.post(f"{PREFIX}/bind", json={**BIND, "PodUID": ""})).status == 400


async def test_a_successful_bind_returns_no_error(client, bench):
    bench.add(pod("a", 8))
    response = await client.post(f"{PREFIX}/bind", json=BIND)
    assert await response.json() == {"Error": ""}


READS = ["inspect", "inspect/n", "explain/default/other", "changes"]


@pytest.mark.parametrize("path", ["filter", "prioritize", "preempt", "bind", "what-if", *READS])
async def test_every_verb_is_503_until_the_cluster_is_listed(client, bench, path):
    bench.reasons = ["pods are not listed yet"]
    response = await (client.get if path in READS else client.post)(f"{PREFIX}/{path}")
    assert response.status == 503
    assert "not listed" in await response.text()
    assert (await client.get("/readyz")).status == 503
    assert (await client.get("/healthz")).status == 200
    assert (await client.get(f"{PREFIX}/page")).status == 200


async def test_inspect_shows_gpus_and_pods_in_aliyun_gpushares_form(client, bench):
    answer = await (await client.get(f"{PREFIX}/inspect/full")).json()
    [shown] = answer["nodes"]
    assert (shown["name"], shown["totalGPU"], shown["usedGPU"]) == ("full", 8, 8)
    [device] = shown["devs"]
    assert device["pods"] == [{"name": "other", "namespace": "default", "usedGPU": 8}]
    everything = await (await client.get(f"{PREFIX}/inspect")).json()
    assert [shown["name"] for shown in everything["nodes"]] == ["full", "n", "small"]


async def test_inspect_of_a_large_cluster_takes_short_steps(bench):
    for number in range(100):
        bench.cluster.node_changed(node(f"more-{number}", 16))
    steps = inspect.view_cluster(bench.cluster.ledger, {})
    assert sum(1 for _ in steps) >= 5
    steps = inspect.view_cluster(bench.cluster.ledger, {})
    next(steps)
    bench.cluster.node_deleted(node("more-1", 16))
    shown = []
    list(kept(steps, shown))
    assert len(shown[0].nodes) == 102


def kept(steps, shown):
    """Yield the steps and append their result to ``shown``."""
    shown.append((yield from steps))


async def test_inspect_names_pods_whose_gpu_is_unknown_and_pods_that_have_none(client, bench):
    bench.add(pod("bare", 2, node="n"))
    bench.add(pod("odd", 3, node="n", annotations={ANNOTATION_CARDS: "gone"}))
    answer = await (await client.get(f"{PREFIX}/inspect/n")).json()
    [node] = answer["nodes"]
    shown = [(each["name"], each["units"], each["onEveryGPU"]) for each in node["unplaced"]]
    assert shown == [("bare", 2, False), ("odd", 3, True)]
    assert (node["usedGPU"], node["devs"][0]["free"]) == (5, 13)


async def test_inspect_of_an_unknown_node_is_404(client):
    response = await client.get(f"{PREFIX}/inspect/nosuchnode")
    assert response.status == 404
    assert "nosuchnode" in await response.text()


@pytest.mark.parametrize("path", ["/", f"{PREFIX}/nothing", f"{PREFIX}/inspect/a/b"])
async def test_other_paths_are_404(client, path):
    assert (await client.get(path)).status == 404


async def test_metrics_and_version_are_served(client):
    await filter_call(client, "n")
    text = await (await client.get("/metrics")).text()
    assert 'gpushare_extender_requests_total{outcome="some",verb="filter"}' in text
    assert (await (await client.get("/version")).json())["version"] == "0.1.0"


async def test_metrics_include_sums_of_nodes_whether_ready_or_not(bench):
    bench.reasons.append("pods are not listed yet")
    render = NodeMetrics(bench.cluster.ledger).render
    routes = Routes(bench.cluster, bench.binder, lambda: bench.reasons, more_metrics=render)
    async with TestClient(TestServer(routes.app())) as client:
        text = await (await client.get("/metrics")).text()
    assert 'gpushare_node_used_units{node="full"} 8\n' in text
    assert "gpushare_cluster_largest_request_units 16\n" in text
