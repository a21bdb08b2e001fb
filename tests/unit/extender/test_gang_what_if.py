"""what-if about a gang: whether all of its pods would start now."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.answers.gang_what_if import ASSUMED, GangQuestion, Part, answer
from gpushare.answers.what_if import BUDGETS
from gpushare.groups.model import MOST_MEMBERS
from gpushare.planning.ask import ZoneRole
from gpushare.preemption.model import Rules
from gpushare.process.time_slices import run_all
from gpushare.quota.namespaces import Namespace
from gpushare.quota.quota import parse
from gpusharectl.reach.listed_cluster import ListedCluster
from tests.builders import annotated
from tests.unit.extender.scripted import PREFIX, Bench, bound, changed
from tests.unit.extender.test_gangs import member
from tests.unit.extender.test_what_if import large, manifest

ZONE = "topology.kubernetes.io/zone"
LABELS = {
    "pod-group.scheduling.sigs.k8s.io/name": "train",
    "pod-group.scheduling.sigs.k8s.io/min-available": "4",
}


def worker(units="8", labels=LABELS, annotations=None, **more):
    made = manifest(units, labels=labels, **more)
    made["metadata"]["annotations"] = annotations or {}
    return made


def server():
    made = worker()
    del made["spec"]["containers"][0]["resources"]
    return made


def zoned(name, zone, *sizes):
    return changed(large(name, *sizes), {"labels": {ZONE: zone}})


@pytest.fixture
async def bench():
    """Zone a has two cards of 16, of which one is full; zone b has two empty ones."""
    made = Bench(16, 16)
    made.cluster.node_changed(zoned("n", "a", 16, 16))
    made.cluster.node_changed(zoned("m", "b", 16, 16))
    made.add(bound("whole", 16, "GPU-1"))
    return made


async def post(client, *parts, **more):
    pods = [
        part if isinstance(part, dict) else {"pod": part[0], "count": part[1]} for part in parts
    ]
    return await client.post(f"{PREFIX}/what-if/gang", json={"pods": pods, **more})


async def ask(client, *parts, **more):
    response = await post(client, *parts, **more)
    assert response.status == 200, await response.text()
    return await response.json()


async def test_a_gang_that_fits_has_a_place_for_each_pod(client, bench):
    found = await ask(client, (worker(), 4))
    assert (found["fits"], found["asked"], found["fitting"]) == (True, 4, 4)
    assert sum(place["pods"] for place in found["places"]) == 4
    assert found["gang"] == {
        "name": "train", "source": "labels", "minimum": 4, "zoneKey": "", "zone": "",
        "text": "All 4 would start.",
    }  # fmt: skip


async def test_a_gang_that_does_not_fit_says_how_many_would(client, bench):
    found = await ask(client, (worker("16"), 4))
    assert (found["fits"], found["fitting"], found["places"]) == (False, 0, [])
    assert found["gang"]["text"] == (
        "No room for 4 x 16 MiB together: 3 fit now. It starts when 1 more fits, or with a minimum "
        "of 3."
    )


async def test_the_zone_in_which_it_fits_is_named(client, bench):
    annotations = {"gpushare.aliyun.com/gang-zone": ZONE}
    found = await ask(client, (worker(annotations=annotations), 4))
    assert (found["gang"]["zone"], found["gang"]["text"]) == ("b", "All 4 would start in zone b.")
    found = await ask(client, (worker("12", annotations=annotations), 4))
    assert found["gang"]["text"].startswith(
        "No zone has room for 4 x 12 MiB: zone b has room for 2."
    )


async def test_zones_for_other_sizes_are_not_used(client, bench):
    bench.cluster.state.zone_roles = (ZoneRole("a", 1, 2), ZoneRole("b", 8, 64))
    annotations = {"gpushare.aliyun.com/gang-zone": ZONE}
    found = await ask(client, (worker(annotations=annotations), 4))
    assert found["gang"]["text"].startswith("No zone is for gangs that use this number of GPUs")


async def test_different_pods_of_one_gang_are_asked_about_together(client, bench):
    found = await ask(client, (worker("16"), 2), (worker("4"), 1), {"pod": server()})
    assert (found["fits"], found["asked"]) == (True, 4)
    assert [place for place in found["places"] if not place["cards"]] != []


async def test_an_elastic_gang_fits_with_its_minimum(client, bench):
    labels = {**LABELS, "pod-group.scheduling.sigs.k8s.io/min-available": "2"}
    found = await ask(client, (worker("16", labels), 5))
    assert (found["fits"], found["asked"], found["fitting"]) == (True, 5, 3)
    assert found["gang"]["text"] == "3 of 5 would start, at least 2."


async def test_only_the_minimum_of_a_gang_must_be_within_the_quota(client, bench):
    labels = {**LABELS, "pod-group.scheduling.sigs.k8s.io/min-available": "2"}
    part = worker(labels=labels, namespace="team")
    bench.cluster.state.namespaces.put(Namespace("team", quota=parse("16")))
    assert (await ask(client, (part, 4)))["fits"]
    bench.cluster.state.namespaces.put(Namespace("team", quota=parse("15")))
    found = await ask(client, (part, 4))
    assert not found["fits"]
    assert found["quota"] == {"namespace": "team", "left": 15, "needed": 16, "problem": ""}


async def test_too_few_pods_for_the_minimum_do_not_start(client, bench):
    found = await ask(client, (worker(), 3))
    assert not found["fits"]
    assert found["gang"]["text"].startswith("Waiting for 1 of 4 members; 3 exist.")


async def test_a_wrong_minimum_is_told(client, bench):
    labels = {**LABELS, "pod-group.scheduling.sigs.k8s.io/min-available": "all"}
    found = await ask(client, (worker(labels=labels), 3))
    assert found["gang"]["text"].startswith("It cannot start: a member of the pod's gang has")


async def test_the_minimum_of_a_pod_group_is_stated_or_assumed(client, bench):
    labels = {"scheduling.x-k8s.io/pod-group": "train"}
    found = await ask(client, (worker("16", labels), 4), minimum=2)
    assert (found["fits"], found["fitting"], found["gang"]["minimum"]) == (True, 3, 2)
    assert ASSUMED not in found["notChecked"]
    found = await ask(client, (worker("16", labels), 4))
    assert (found["fits"], found["gang"]["minimum"]) == (False, 4)
    assert found["notChecked"][0] == ASSUMED


async def test_nothing_is_reserved_and_members_in_the_cluster_do_not_count(client, bench):
    bench.add(*(member(f"there-{number}", minimum=4) for number in range(4)))
    for _ in range(2):
        assert (await ask(client, (worker(), 4)))["fits"]
    assert not list(bench.cluster.ledger.kept())
    assert not (await ask(client, (worker(), 2)))["fits"]


async def test_what_would_be_evicted_for_a_gang_is_said_with_the_places_after_that(client, bench):
    found = await ask(client, (worker("16", priority=5), 4), evict=True)
    assert (found["fits"], found["places"]) == (False, [])
    [eviction] = found["byEvicting"]["evictions"]
    assert (eviction["node"], eviction["cards"], eviction["uuids"]) == ("n", [1], ["GPU-1"])
    [victim] = eviction["pods"]
    assert (victim["name"], victim["units"], victim["priority"]) == ("whole", 16, 0)
    places = [(each["node"], *each["cards"]) for each in found["byEvicting"]["places"]]
    assert sorted(places) == [("m", 0), ("m", 1), ("n", 0), ("n", 1)]
    assert BUDGETS in found["notChecked"]
    assert not list(bench.cluster.ledger.kept())


@pytest.mark.parametrize("more", [{}, {"priority": 5, "preemptionPolicy": "Never"}], ids=str)
async def test_nothing_is_evicted_for_a_gang_that_may_not_evict(client, bench, more):
    assert "byEvicting" not in await ask(client, (worker("16", **more), 4), evict=True)


async def test_evictions_are_told_only_if_they_are_asked_for_and_needed(client, bench):
    found = await ask(client, (worker("16", priority=5), 4))
    assert "byEvicting" not in found
    assert BUDGETS not in found["notChecked"]
    assert "byEvicting" not in await ask(client, (worker("8", priority=5), 4), evict=True)


async def test_only_pods_that_may_be_evicted_by_configuration_are(client, bench):
    bench.cluster.state.victim_rules = Rules(preemptible_only=True)
    assert "byEvicting" not in await ask(client, (worker("16", priority=5), 4), evict=True)


async def test_what_is_not_checked_is_listed_once(client, bench):
    claims = worker(resourceClaims=[{"name": "x"}], schedulingGates=[{"name": "later"}])
    found = await ask(client, (claims, 2), (worker(), 2))
    assert found["fits"]
    listed = found["notChecked"]
    assert {"resource claims", "scheduling gates"} <= set(listed)
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "missing required field `pods`"),
        ({"pods": []}, "length >= 1"),
        ({"pods": [{"pod": worker()}], "count": 3}, "unknown field `count`"),
        ({"pods": [{"pod": manifest()}]}, "pod names no gang - at `$.pods[0].pod`"),
        (
            {
                "pods": [
                    {"pod": worker()},
                    {"pod": worker(labels={**LABELS, next(iter(LABELS)): "x"})},
                ]
            },
            "the pods are of several gangs",
        ),
        ({"pods": [{"pod": worker(), "count": 0}]}, ">= 1"),
        ({"pods": [{"pod": worker(), "count": MOST_MEMBERS}] * 2}, "at most 1024 are possible"),
        ({"pods": [{"pod": {**worker(), "kind": "Job"}}]}, "for a workload, its pod template"),
        ({"pods": [{"pod": {**worker(), "spec": {}}}]}, "pod has no containers"),
        ({"pods": [{"pod": {**worker(), "spec": {"containers": 7}}}]}, "$.pods[0].pod.spec"),
        ({"pods": [{"pod": worker()}], "minimum": 0}, ">= 1"),
    ],
    ids=str,
)
async def test_a_question_that_cannot_be_answered_says_why(client, bench, body, says):
    response = await client.post(f"{PREFIX}/what-if/gang", data=json.dumps(body))
    assert response.status == 400
    assert says in (await response.json())["Error"]


sizes = st.lists(st.integers(1, 16), min_size=1, max_size=4)


@settings(deadline=None)
@given(sizes, sizes, st.integers(1, 6), st.integers(1, 6))
def test_places_are_never_more_than_there_is(cards, units, count, minimum):
    world = ListedCluster([large("n", *cards)], [])
    parts = [
        Part(annotated(member(f"p{n}", minimum=minimum, units=each), {}), count)
        for n, each in enumerate(units)
    ]
    found = run_all(answer(world, GangQuestion(parts)))
    used = dict.fromkeys((f"GPU-{index}" for index in range(len(cards))), 0)
    assert found.fitting >= minimum or not found.fits
    assert found.fitting == sum(place.pods for place in found.places)
    if len(units) == 1:
        for place in found.places:
            used[place.uuids[0]] += place.pods * units[0]
        assert all(used[f"GPU-{index}"] <= size for index, size in enumerate(cards))
        room = sum(size // units[0] for size in cards)
        assert found.fits == (count >= minimum and room >= minimum)
