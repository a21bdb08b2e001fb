"""A pod over the quota of its namespace waits, is told why, and is placed when there is quota."""

import asyncio
from dataclasses import replace

import pytest

from extender.binding.binder import BindRefused
from extender.decisions.preemption.proposals import Veto
from gpushare.annotations import inventory
from gpushare.answers.pending.facts import QUOTA
from gpushare.answers.pending.text import sentence
from gpushare.answers.pending.why import why_pending
from gpushare.contract import ANNOTATION_CARDS, ANNOTATION_INVENTORY, GATE_ADMISSION
from gpushare.errors import NoRoom
from gpushare.objects.scheduling import SchedulingGate
from gpushare.process.time_slices import run_all
from gpushare.quota.namespaces import Namespace
from gpushare.quota.quota import parse
from gpushare.quota.reasons import (
    NAMESPACE_ENDS,
    OVER_MODEL_QUOTA,
    OVER_QUOTA,
    WRONG_QUOTA,
)
from tests.builders import annotated, node, pod, stock
from tests.gangs import member
from tests.unit.extender.queue.test_admission import GATED, check, gated, stage
from tests.unit.extender.scripted import changed

GATES = {"scheduling_gates": (SchedulingGate(GATE_ADMISSION),)}


def with_models(name, *models, size=16):
    """A node with one GPU of each of these models."""
    found = stock(*(size for _ in models))
    each = zip(found.cards, models, strict=True)
    found = replace(found, cards=tuple(replace(card, model=model) for card, model in each))
    made = node(name, *(size for _ in models))
    return annotated(made, {ANNOTATION_INVENTORY: inventory.encode(found)})


def limit(cluster, quota, namespace="default"):
    found = None if quota is None else parse(quota)
    cluster.cluster.state.namespaces.put(Namespace(namespace, quota=found))


def waiting(name, units, **spec):
    return changed(pod(name, units), spec=GATES | spec)


def used(cluster, namespace="default"):
    return cluster.cluster.state.namespace_use.used(namespace).total()


def said(cluster, name):
    """Return what people are told about a Pending pod, and its cause."""
    state, found = cluster.cluster.state, cluster.kube.pods[name]
    why = run_all(why_pending(state, found, gang=state.gangs.view_of(found.uid)))
    return why.cause, sentence(why)


@pytest.fixture
def here():
    """Two nodes with two GPUs of 16 units each."""
    return stage()


@pytest.fixture
def mixed():
    """A node of each of two models."""
    cluster, api, admission = stage({"small": (16,), "large": (16,)})
    cluster.put_node(with_models("small", "T4"))
    cluster.put_node(with_models("large", "A100"))
    return cluster, api, admission


async def test_an_ungated_pod_over_the_quota_is_rejected_on_every_node_and_told_why(here):
    cluster, _, _ = here
    limit(cluster, "8")
    cluster.add(pod("p", 8), pod("q", 1))
    assert await cluster.schedule("p", "q") == {"p": cluster.bound("p")["p"]}
    assert await cluster.offered("q") == ([], OVER_QUOTA.text)
    cause, text = said(cluster, "q")
    assert cause == QUOTA
    assert "namespace default uses 8 MiB of its quota of 8 MiB, and the pod requests 1 MiB" in text


async def test_a_pod_that_ends_slowly_counts_until_it_is_gone(here):
    cluster, _, _ = here
    limit(cluster, "8")
    cluster.add(pod("p", 8), pod("q", 8))
    await cluster.schedule("p")
    cluster.terminate("p")
    assert await cluster.schedule("q") == {}
    cluster.delete("p")
    assert list(await cluster.schedule("q")) == ["q"]


async def test_other_namespaces_are_not_limited(here):
    cluster, _, _ = here
    limit(cluster, "0", "other")
    cluster.add(pod("p", 8), changed(pod("q", 8), {"namespace": "other"}))
    assert list(await cluster.schedule("p", "q")) == ["p"]


async def test_a_lowered_quota_ends_nothing_and_admits_nothing_until_there_is_less_use(here):
    cluster, _, _ = here
    limit(cluster, "16")
    cluster.add(pod("p", 8), pod("q", 8), pod("r", 2))
    await cluster.schedule("p", "q")
    limit(cluster, "8")
    assert await cluster.schedule("r") == {}
    cluster.delete("p")
    assert await cluster.schedule("r") == {}
    cluster.delete("q")
    assert list(await cluster.schedule("r")) == ["r"]


@pytest.mark.parametrize(
    ("namespace", "reason", "words"),
    [
        (Namespace("default", problem="it is wrong"), WRONG_QUOTA, "it is wrong"),
        (Namespace("default", is_ending=True), NAMESPACE_ENDS, "is being deleted"),
    ],
    ids=["unreadable", "ending"],
)
async def test_nothing_is_placed_while_the_quota_is_unreadable_or_the_namespace_ends(
    here, namespace, reason, words
):
    cluster, api, admission = here
    cluster.cluster.state.namespaces.put(namespace)
    cluster.add(pod("p", 1), waiting("q", 1), *gated("g", 2, 2, units=1))
    assert await cluster.offered("p") == ([], reason.text)
    await check(admission)
    assert (api.patches, cluster.held) == ({}, 0)
    assert words in said(cluster, "p")[1]
    limit(cluster, None)
    await check(admission)
    assert sorted(api.patches) == ["g-0", "g-1", "q"]
    assert list(await cluster.schedule("p")) == ["p"]


async def test_two_pods_that_are_bound_at_once_get_no_more_than_the_quota(here):
    cluster, _, _ = here
    limit(cluster, "8")
    cluster.add(pod("p", 8), pod("q", 8))
    for name in "pq":
        assert (await cluster.offered(name))[0]
    done = await asyncio.gather(
        cluster.bind("p", "a"), cluster.bind("q", "b"), return_exceptions=True
    )
    refused = [each for each in done if each is not None]
    assert [OVER_QUOTA.text in str(each) for each in refused] == [True]
    assert isinstance(refused[0], (NoRoom, BindRefused))
    assert len(cluster.bound()) == 1


async def test_gated_pods_over_the_quota_keep_nothing_until_it_is_raised(here):
    cluster, api, admission = here
    limit(cluster, "8")
    cluster.add(*(waiting(name, 8) for name in "pqr"))
    await check(admission)
    assert list(api.patches) == ["p"]
    assert said(cluster, "q")[0] == QUOTA
    await cluster.schedule("p")
    limit(cluster, "16")
    await check(admission)
    assert list(api.patches) == ["p", "q"]


async def test_a_gated_pod_is_released_when_another_one_of_its_namespace_ends(here):
    cluster, api, admission = here
    limit(cluster, "8")
    cluster.add(waiting("p", 8), waiting("q", 8))
    await check(admission)
    await cluster.schedule("p")
    await check(admission)
    assert list(api.patches) == ["p"]
    cluster.delete("p")
    await check(admission)
    assert list(api.patches) == ["p", "q"]


async def test_a_slot_is_an_admission_that_a_lowered_quota_does_not_take_back(here):
    cluster, _, admission = here
    limit(cluster, "8")
    cluster.add(waiting("p", 8))
    await check(admission)
    limit(cluster, "0")
    assert list(await cluster.schedule("p")) == ["p"]


async def test_a_gang_whose_minimum_exceeds_the_quota_keeps_nothing_and_is_told_why(here):
    cluster, api, admission = here
    limit(cluster, "8")
    cluster.add(*gated("g", 3, 3, units=4))
    await check(admission)
    assert (api.patches, cluster.held) == ({}, 0)
    text = said(cluster, "g-0")[1]
    assert "The gang requests 12 MiB, and the whole quota of namespace default is 8 MiB" in text
    limit(cluster, "12")
    await check(admission)
    assert sorted(api.patches) == ["g-0", "g-1", "g-2"]


async def test_ungated_members_of_a_gang_over_the_quota_are_told_so(here):
    cluster, _, _ = here
    limit(cluster, "8")
    cluster.add(*(member(f"g-{n}", "g", 3, units=4) for n in range(3)))
    for name in ("g-0", "g-1", "g-0"):
        assert await cluster.offered(name) == ([], OVER_QUOTA.text)
    assert cluster.held == 0


async def test_the_surplus_of_a_gang_waits_for_quota(here):
    cluster, api, admission = here
    limit(cluster, "8")
    cluster.add(*gated("g", 3, 2, units=4))
    await check(admission)
    assert sorted(api.patches) == ["g-0", "g-1"]
    assert len(await cluster.schedule("g-0", "g-1")) == 2
    await check(admission)
    assert sorted(api.patches) == ["g-0", "g-1"]
    limit(cluster, "12")
    await check(admission)
    assert sorted(api.patches) == ["g-0", "g-1", "g-2"]
    assert used(cluster) == 12


async def test_the_smallest_members_of_a_gang_start_if_the_first_ones_are_over_the_quota(here):
    cluster, api, admission = here
    limit(cluster, "10")
    for name, units in (("g-0", 8), ("g-1", 4), ("g-2", 8), ("g-3", 2)):
        cluster.add(member(name, "g", 3, units=units, gates=GATED))
    await check(admission)
    assert api.patches == {}
    assert "The gang requests 14 MiB, and the whole quota" in said(cluster, "g-0")[1]
    limit(cluster, "14")
    await check(admission)
    assert sorted(api.patches) == ["g-0", "g-1", "g-3"]


async def test_two_gangs_of_a_namespace_get_its_quota_one_after_the_other(here):
    cluster, api, admission = here
    limit(cluster, "10")
    cluster.add(*gated("g", 2, 2, units=4), *gated("h", 2, 2, units=4))
    await check(admission)
    assert len({name[0] for name in api.patches}) == 1
    assert used(cluster) == 8


async def test_a_pod_gets_a_gpu_of_another_model_once_its_quota_of_one_is_used_up(mixed):
    cluster, _, _ = mixed
    limit(cluster, "T4=4")
    cluster.add(pod("p", 4), pod("q", 4))
    await cluster.bind("p", "small")
    assert (await cluster.offered("q"))[0] == ["large"]
    cluster.add(pod("full", 16, node="large", annotations={ANNOTATION_CARDS: "GPU-0"}))
    cluster.add(changed(pod("r", 4)))
    assert (await cluster.offered("r"))[0] == []
    assert "uses 4 MiB of its quota of 4 MiB of T4" in said(cluster, "r")[1]


async def test_bind_refuses_a_gpu_of_a_model_whose_quota_is_used_up(mixed):
    cluster, _, _ = mixed
    limit(cluster, "T4=4")
    cluster.add(pod("p", 4), pod("q", 4))
    await cluster.bind("p", "small")
    with pytest.raises(NoRoom, match="too little left of its quota for this model"):
        await cluster.bind("q", "small")


@pytest.mark.parametrize(("quota", "node"), [("T4=4", "large"), ("A100=4", "small")])
async def test_a_gang_over_the_quota_of_a_model_is_placed_on_another_one(mixed, quota, node):
    cluster, _, admission = mixed
    limit(cluster, quota)
    cluster.add(*gated("g", 2, 2, units=4))
    await check(admission)
    nodes = {cluster.cluster.ledger.slot_of(f"default-g-{n}").node for n in range(2)}
    assert nodes == {node}


async def test_a_pod_that_cannot_use_its_slot_gets_no_gpu_beyond_the_quota_of_a_model(mixed):
    cluster, api, admission = mixed
    limit(cluster, "T4=0")
    cluster.add(waiting("p", 4))
    await check(admission)
    assert list(api.patches) == ["p"]
    assert await cluster.offered("p", ["small"]) == ([], OVER_MODEL_QUOTA.text)
    with pytest.raises(NoRoom, match="for this model"):
        await cluster.bind("p", "small")
    assert list(await cluster.schedule("p")) == ["p"]


async def test_a_quota_of_a_model_that_was_lowered_below_its_use_does_not_limit_other_models(mixed):
    cluster, api, admission = mixed
    limit(cluster, "T4=12")
    cluster.add(pod("p", 12))
    await cluster.bind("p", "small")
    limit(cluster, "T4=4")
    cluster.add(waiting("q", 4), *gated("g", 2, 2, units=4))
    await check(admission)
    assert set(api.patches) == {"q", "g-0", "g-1"}


async def test_a_model_that_a_namespace_may_not_use_is_no_lack_of_room_for_others(mixed):
    cluster, api, admission = mixed
    limit(cluster, "T4=0")
    cluster.add(pod("full", 16, node="large", annotations={ANNOTATION_CARDS: "GPU-0"}))
    other = changed(waiting("q", 4), {"namespace": "other"}, spec={"priority": 0})
    cluster.add(waiting("p", 4, priority=5), other)
    await check(admission)
    assert list(api.patches) == ["q"]


async def test_nobody_is_evicted_for_a_pod_over_its_quota(here):
    cluster, _, _ = here
    limit(cluster, "8")
    cluster.add(pod("v", 16, node="a", annotations={ANNOTATION_CARDS: "GPU-0"}))
    cluster.add(changed(pod("p", 12), spec={"priority": 5}))
    found = await cluster.answers.preempt(cluster.kube.pods["p"], {"a": ["uid-v"]})
    assert found.kept == {}
    assert found.vetoed == {"a": (Veto.OVER_QUOTA, OVER_QUOTA.text)}


async def test_no_proposal_is_kept_on_gpus_of_a_model_whose_quota_is_used_up(mixed):
    cluster, _, _ = mixed
    limit(cluster, "T4=4")
    for name, at in (("v", "small"), ("w", "large")):
        cluster.add(pod(name, 16, node=at, annotations={ANNOTATION_CARDS: "GPU-0"}))
    cluster.add(changed(pod("p", 12), {"namespace": "default"}, spec={"priority": 5}))
    proposed = {"small": ["uid-v"], "large": ["uid-w"]}
    found = await cluster.answers.preempt(cluster.kube.pods["p"], proposed)
    assert found.kept == {"large": ("uid-w",)}
    assert found.vetoed == {"small": (Veto.OVER_QUOTA, OVER_MODEL_QUOTA.text)}


async def test_all_that_is_released_can_be_bound(here):
    cluster, api, admission = here
    limit(cluster, "20")
    cluster.add(*gated("g", 2, 2, units=4), *(waiting(f"p{n}", 4) for n in range(5)))
    await check(admission)
    assert len(api.patches) == 5
    assert len(await cluster.schedule(*api.patches)) == 5
    assert used(cluster) == 20


async def test_a_plan_is_not_kept_if_less_is_left_of_the_quota_once_it_is_made(here, monkeypatch):
    cluster, api, admission = here
    planner, plan = cluster.planning.planner, cluster.planning.planner.plan
    limit(cluster, "8")
    cluster.add(*gated("g", 2, 2, units=4))

    def slow(ask):
        found = yield from plan(ask)
        limit(cluster, "7")
        return found

    monkeypatch.setattr(planner, "plan", slow)
    await check(admission)
    assert (api.patches, cluster.held) == ({}, 0)


@pytest.mark.parametrize(
    "namespace",
    [Namespace("default", quota=parse("0")), Namespace("default", problem="it is wrong")],
    ids=["none left", "unreadable"],
)
async def test_a_gang_without_gpu_memory_needs_no_quota(here, namespace):
    cluster, api, admission = here
    cluster.add(pod("old", 4, node="a", annotations={ANNOTATION_CARDS: "GPU-0"}))
    cluster.cluster.state.namespaces.put(namespace)
    cluster.add(*gated("g", 2, 2, units=None))
    await check(admission)
    assert sorted(api.patches) == ["g-0", "g-1"]
