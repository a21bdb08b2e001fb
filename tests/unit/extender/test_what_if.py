"""what-if: where so many pods would fit, who would have to go, and what was not looked at."""

import io
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from extender.watch.cluster import ClusterWatch
from gpushare.annotations import pod_annotations
from gpushare.cards.model import Share
from gpushare.contract import ANNOTATION_INVENTORY, ANNOTATION_NODE_POLICY
from gpushare.ledger.holds import Hold, Slot
from gpushare.objects.model import Container, Resources
from gpushare.objects.scheduling import Taint
from gpushare.placement import card_choice as placement
from gpushare.placement import reasons
from gpushare.placement.trial import look
from gpushare.quota.namespaces import Namespace
from gpushare.quota.quota import parse
from gpushare.quota.reasons import WRONG_QUOTA
from tests.builders import node, pod
from tests.fakes.clock import FakeClock
from tests.unit.extender.scripted import PREFIX, Bench, bound, changed

PLENTY = {"cpu": "64", "memory": "256Gi", "pods": "110"}


def large(name, *sizes, taints=None, **amounts):
    """A node with CPU and memory as well."""
    made = node(name, *sizes)
    status = {"allocatable": {**made.allocatable, **PLENTY, **amounts}}
    return changed(made, spec={"taints": taints}, status=status)


@pytest.fixture
async def bench():
    """Node n: two cards of 16 with 8 and 16 used; m: one card of 16, empty and tainted."""
    made = Bench(16, 16)
    made.cluster.node_changed(large("n", 16, 16))
    made.cluster.node_changed(large("m", 16, taints=(Taint("k", "NoSchedule", "v"),)))
    made.add(bound("low", 8), bound("whole", 16, "GPU-1"))
    return made


def manifest(units="8", *, labels=None, resources=None, namespace=None, **spec):
    asks = {"limits": {"aliyun.com/gpu-mem": units, **(resources or {})}}
    containers = [{"name": "main", "image": "x", "resources": asks}]
    metadata = {"name": "a", "labels": labels or {}}
    metadata |= {} if namespace is None else {"namespace": namespace}
    return {"kind": "Pod", "metadata": metadata, "spec": {"containers": containers, **spec}}


async def ask(client, *arguments, count=None, evict=None, **spec):
    body = {"pod": manifest(*arguments, **spec)}
    if count is not None:
        body["count"] = count
    if evict is not None:
        body["evict"] = evict
    response = await client.post(f"{PREFIX}/what-if", json=body)
    assert response.status == 200, await response.text()
    return await response.json()


async def test_where_it_fits_is_said_with_node_and_cards(client, bench):
    before = bench.held
    found = await ask(client)
    assert (found["fits"], found["asked"], found["fitting"]) == (True, 1, 1)
    assert found["places"] == [{"node": "n", "cards": [0], "uuids": ["GPU-0"], "pods": 1}]
    assert found["wouldHaveToGo"] is None
    assert bench.held == before
    assert not list(bench.cluster.ledger.reserves())


async def test_pods_beyond_the_quota_do_not_fit_whatever_is_free(client, bench):
    namespaces = bench.cluster.state.namespaces
    namespaces.put(Namespace("team", quota=parse("10")))
    within = await ask(client, namespace="team")
    assert within["fits"]
    assert "quota" not in within
    found = await ask(client, "4", count=3, namespace="team")
    assert (found["fits"], found["fitting"]) == (False, 2)
    assert found["quota"] == {"namespace": "team", "left": 10, "needed": 12, "problem": ""}
    namespaces.put(Namespace("team", problem="lots is no number"))
    found = await ask(client, namespace="team")
    assert (found["fits"], found["quota"]["problem"]) == (False, WRONG_QUOTA.text)
    assert (await ask(client))["fits"]


async def test_the_places_of_all_pods_after_evictions_are_said_if_that_is_asked(client, bench):
    found = await ask(client, "16", count=2, priority=5, evict=True)
    plan = found["byEvicting"]
    assert [pod["name"] for each in plan["evictions"] for pod in each["pods"]] == ["low", "whole"]
    assert [place["cards"] for place in plan["places"]] == [[0], [1]]
    assert "byEvicting" not in await ask(client, "16", count=2, priority=5)
    assert "byEvicting" not in await ask(client, "16", count=3, priority=5, evict=True)
    assert "byEvicting" not in await ask(client, "8", priority=5, evict=True)


async def test_of_many_those_that_fit_are_counted_and_the_limit_is_named(client):
    found = await ask(client, "4", count=10)
    assert (found["fits"], found["fitting"]) == (False, 2)
    assert found["places"] == [{"node": "n", "cards": [0], "uuids": ["GPU-0"], "pods": 2}]
    assert found["reasons"] == {
        "taint k=v:NoSchedule is not tolerated": 1,
        "no single GPU has enough free aliyun.com/gpu-mem": 1,
    }


async def test_a_toleration_opens_a_node_and_the_card_that_is_filled_best_is_taken_first(client):
    tolerations = [{"key": "k", "operator": "Exists"}]
    found = await ask(client, "8", count=9, tolerations=tolerations)
    assert [(each["node"], each["pods"]) for each in found["places"]] == [("n", 1), ("m", 2)]


async def test_who_would_have_to_go_is_named_and_lives(client, bench):
    found = await ask(client, "16", priority=10)
    gone = found["wouldHaveToGo"]
    assert (gone["node"], gone["cards"], gone["uuids"]) == ("n", [0], ["GPU-0"])
    [victim] = gone["pods"]
    assert victim == {
        "namespace": "default",
        "name": "low",
        "uid": "uid-low",
        "units": 8,
        "priority": 0,
        "terminating": False,
    }
    assert bench.cluster.ledger.share("uid-low") is not None
    assert (await ask(client, "16"))["wouldHaveToGo"] is None
    never = await ask(client, "16", priority=10, preemptionPolicy="Never")
    assert never["wouldHaveToGo"] is None


async def test_who_would_have_to_go_for_one_more_is_named_beside_those_that_fit(client):
    found = await ask(client, "4", count=3, priority=10)
    assert (found["fitting"], found["places"][0]["cards"]) == (2, [0])
    assert [each["name"] for each in found["wouldHaveToGo"]["pods"]] == ["low"]


async def test_pods_that_are_about_to_end_are_named_as_those(client, bench):
    bench.cluster.pod_changed(
        changed(
            bound("low", 8),
            {"deletion_timestamp": "2030-01-01T00:00:00Z", "deletion_grace_period_seconds": 30},
        )
    )
    gone = (await ask(client, "16"))["wouldHaveToGo"]
    assert [(each["name"], each["terminating"]) for each in gone["pods"]] == [("low", True)]


async def test_nobody_is_named_on_a_node_where_the_pod_may_not_be(client):
    tolerations = [{"key": "k", "operator": "Exists"}]
    found = await ask(
        client, "16", priority=10, nodeSelector={"zone": "a"}, tolerations=tolerations
    )
    assert found["wouldHaveToGo"] is None
    assert found["reasons"] == {"node does not have the labels of nodeSelector": 2}


@pytest.mark.parametrize(
    ("amounts", "resources", "short"),
    [
        ({"cpu": "1"}, {"cpu": "2"}, "cpu"),
        ({"memory": "1Gi"}, {"memory": "2Gi"}, "memory"),
        ({"pods": "2"}, {}, "pods"),
        ({"aliyun.com/gpu-mem": "25"}, {}, "aliyun.com/gpu-mem"),
        ({"example.com/nic": "1"}, {"example.com/nic": "2"}, "example.com/nic"),
    ],
)
async def test_allocatable_is_looked_at(client, bench, amounts, resources, short):
    bench.cluster.node_changed(large("n", 16, 16, **amounts))
    found = await ask(client, resources=resources, nodeSelector={})
    assert found["fits"] is False
    assert found["reasons"][f"node has too little allocatable left of {short}"] == 1


async def test_what_known_pods_and_plans_have_taken_is_counted(client, bench):
    bench.cluster.node_changed(large("n", 16, 16, cpu="4"))
    assert (await ask(client, "1", resources={"cpu": "1500m"}, count=9))["fitting"] == 2
    bench.cluster.ledger.keep(Hold("gang", (Slot("n", (), 0, requests=(("cpu", 1500),)),), 1e9))
    assert (await ask(client, "1", resources={"cpu": "1500m"}, count=9))["fitting"] == 1
    (container,) = bound("low", 8).containers
    asks = Resources(container.limits, {**container.requests, "cpu": "3"})
    busy = {"containers": (replace(container, resources=asks),)}
    bench.add(changed(bound("low", 8), spec=busy))
    assert (await ask(client, "1", resources={"cpu": "1500m"}, count=9))["fitting"] == 0
    gone = await ask(client, "16", resources={"cpu": "1500m"}, priority=1)
    assert [each["name"] for each in gone["wouldHaveToGo"]["pods"]] == ["low"]


async def test_the_pods_whose_end_frees_too_little_cpu_are_not_named(client, bench):
    bench.cluster.node_changed(large("n", 16, 16, cpu="1"))
    found = await ask(client, "16", resources={"cpu": "2"}, priority=10)
    assert found["wouldHaveToGo"] is None


async def test_a_pod_with_more_than_is_read_of_one_is_refused_with_the_part(client):
    found = await ask(client, "4", tolerations=[{"key": f"a{number}"} for number in range(40_000)])
    [(text, _)] = found["reasons"].items()
    assert "spec.tolerations" in text


async def test_what_cannot_be_granted_anywhere_is_said_of_every_node(client):
    found = await ask(client, "0")
    assert found["fits"] is False
    [(text, nodes)] = found["reasons"].items()
    assert "is 0 in every container" in text
    assert nodes == 2
    assert found["places"] == []
    uneven = await ask(client, "3", labels={"aliyun.com/gpu-count": "2"})
    assert "equal parts" in next(iter(uneven["reasons"]))


async def test_a_policy_that_the_configuration_lacks_is_a_refusal_here_too(client):
    body = {"pod": manifest("4")}
    body["pod"]["metadata"]["annotations"] = {ANNOTATION_NODE_POLICY: "shape"}
    found = await (await client.post(f"{PREFIX}/what-if", json=body)).json()
    assert found["fits"] is False
    assert "write binpack or spread" in next(iter(found["reasons"]))


async def test_pods_without_gpu_memory_use_cpu_too(client, bench):
    cpu = {"resources": {"cpu": "4"}}
    assert (await ask(client, "1", count=3, **cpu))["fitting"] == 3
    amounts = {"cpu": "58"}
    bench.cluster.pod_changed(
        pod("web", node="n", containers=[Container("main", Resources(amounts, amounts))])
    )
    found = await ask(client, "1", count=3, **cpu)
    assert found["fitting"] == 1
    assert "node has too little allocatable left of cpu" in found["reasons"]


async def test_what_was_not_checked_is_named(client):
    plain = (await ask(client))["notChecked"]
    assert any("ResourceQuotas" in each for each in plain)
    everything = await ask(
        client,
        affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}},
        topologySpreadConstraints=[{"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
        volumes=[{"name": "data"}],
        resourceClaims=[{"name": "claim"}],
        resources={"cpu": "1"},
        schedulingGates=[{"name": "gate"}],
        priorityClassName="high",
        initContainers=[{"name": "i"}],
    )
    named = set(everything["notChecked"]) - set(plain)
    assert named == {
        "affinity between pods",
        "topology spread",
        "volumes",
        "resource claims",
        "scheduling gates",
        "priorityClassName: write spec.priority, 0 was assumed",
    }
    for containers in ("containers", "initContainers"):
        ports = manifest()
        ports["spec"].setdefault(containers, [{"name": "i"}])[0]["ports"] = [{"hostPort": 80}]
        response = await client.post(f"{PREFIX}/what-if", json={"pod": ports})
        named = set((await response.json())["notChecked"]) - set(plain)
        assert named == {"host ports"}
    licensed = manifest()
    licensed["spec"]["containers"][0]["resources"]["limits"]["example.com/license"] = "1"
    response = await client.post(f"{PREFIX}/what-if", json={"pod": licensed})
    found = await response.json()
    assert found["fits"], found
    named = set(found["notChecked"]) - set(plain)
    assert named == {"requested resources that no node offers"}


async def test_a_node_that_cannot_be_read_takes_no_part(client, bench):
    broken = {"annotations": {ANNOTATION_INVENTORY: "{"}}
    bench.cluster.node_changed(changed(large("n", 16, 16), broken))
    found = await ask(client)
    assert found["fitting"] == 0
    assert found["reasons"][reasons.UNREADABLE.text] == 1


BAD = [
    (b"", "cannot be read"),
    (b"{", "cannot be read"),
    (b"[]", "Expected `object`"),
    (b"{}", "required field `pod`"),
    (b'{"pod":null}', "$.pod"),
    (b'{"pod":{}}', "metadata"),
    (b'{"pod":{"metadata":{}},"counts":2}', "counts"),
    (b'{"pod":{"metadata":{}},"count":0}', "$.count"),
    (b'{"pod":{"metadata":{}},"count":1001}', "$.count"),
    (b'{"pod":{"metadata":{}},"count":1.5}', "$.count"),
    (b'{"pod":{"metadata":{}},"count":"2"}', "$.count"),
    (b'{"pod":{"metadata":{}}}', "$.pod.spec.containers"),
    (b'{"pod":{"metadata":{},"spec":{"containers":[]}}}', "$.pod.spec.containers"),
    (b'{"pod":{"metadata":{},"spec":{"containers":{}}}}', "$.pod.spec.containers"),
    (b'{"pod":{"metadata":{},"spec":{"nodeSelector":{"a":1}}}}', "$.pod.spec.nodeSelector"),
    (b'{"pod":{"metadata":{},"spec":{"volumes":"x"}}}', "$.pod.spec.volumes"),
    (b'{"pod":{"kind":"Deployment","metadata":{},"spec":{}}}', "Deployment"),
    (b'{"pod":' + b"[" * 20000, "cannot be read"),
]


@pytest.mark.parametrize(("body", "says"), BAD, ids=range(len(BAD)))
async def test_a_body_that_is_none_is_refused_with_its_place(client, body, says):
    response = await client.post(f"{PREFIX}/what-if", data=body)
    text = json.loads(await response.text())["Error"]
    assert response.status == 400
    assert says in text


async def test_a_cpu_that_is_a_broken_number_is_refused_with_its_place(client):
    body = manifest()
    body["spec"]["containers"][0]["resources"]["limits"]["cpu"] = 0.5
    response = await client.post(f"{PREFIX}/what-if", json={"pod": body})
    assert response.status == 400
    assert "$.pod.spec.containers[0].resources" in (await response.json())["Error"]


async def test_a_body_that_is_larger_than_any_pod_is_not_read(client):
    body = b'{"pod":{"metadata":{"name":"' + b"x" * 2**20 + b'"}}}'
    response = await client.post(f"{PREFIX}/what-if", data=io.BytesIO(body))
    assert response.status == 413


async def test_only_post_asks(client):
    assert (await client.get(f"{PREFIX}/what-if")).status == 405


def run(steps):
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_is_foretold_is_what_binding_one_by_one_would_give(data):
    """Nodes do not depend on one another: as many fit as fit on each by itself."""
    cluster = ClusterWatch(1, lambda *_: None, FakeClock())
    numbers = itertools.count()
    sizes = data.draw(
        st.lists(st.lists(st.integers(1, 16), min_size=1, max_size=3), min_size=1, max_size=4)
    )
    for place, cards in enumerate(sizes):
        cluster.node_changed(large(f"n{place}", *cards))
        for card in range(len(cards)):
            units = data.draw(st.integers(0, cards[card]))
            if units:
                name = f"p{next(numbers)}"
                cluster.pod_changed(bound(name, units, f"GPU-{card}", f"n{place}"))
    units, count = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 2))
    asked = data.draw(st.integers(1, 40))
    new = pod("new", units * count, labels={"aliyun.com/gpu-count": str(count)})
    request = pod_annotations.request_of(new)
    before = {name: cluster.ledger.account(name) for name in cluster.ledger.nodes()}
    found = run(look(cluster.state, new, asked))
    assert {name: cluster.ledger.account(name) for name in cluster.ledger.nodes()} == before

    trial, possible = cluster.ledger.overlay(), 0
    for name in list(trial.nodes()):
        while (chosen := placement.choose(trial.account(name), request)) is not None:
            possible += 1
            uuids = tuple(card.uuid for card in chosen)
            trial.put_share(Share(f"x{possible}", "d", "x", name, units, uuids))
    assert len(found.places) == min(asked, possible)
    again = cluster.ledger.overlay()
    for number, place in enumerate(found.places):
        uuids = tuple(card.uuid for card in place.cards)
        again.put_share(Share(f"y{number}", "d", "y", place.node, units, uuids))
    assert all(e.overcommitted == 0 for name in again.nodes() for e in again.account(name).cards)
