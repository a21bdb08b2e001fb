"""With early binding Allocate names the GPU, and a start on another one is rejected."""

import asyncio
import random

import grpc
import pytest

from deviceplugin.allocation import allocate
from deviceplugin.errors import KubeletError
from deviceplugin.server import kubelet_outage
from protos.deviceplugin.v1beta1 import api_pb2
from tests.fakes.kubelet import FakeKubelet, Rejected
from tests.fakes.pods import pod, too_large
from tests.integration.deviceplugin.plugin import CARDS, FIRST, SECOND, Plugin
from tests.waiting import eventually

pytestmark = pytest.mark.integration


@pytest.fixture
async def plugin(start) -> Plugin:
    return await start(binding="early", unit_mib=256)


def given(kubelet: FakeKubelet, owner, container: str = "app-0") -> str:
    return kubelet.answer(owner, container).envs["NVIDIA_VISIBLE_DEVICES"]


async def test_the_answer_names_the_decided_gpu(plugin, kubelet) -> None:
    wanted = pod("a", 8, cards=(SECOND,))
    await kubelet.admit(wanted)
    assert dict(kubelet.answer(wanted).envs) == {
        "NVIDIA_VISIBLE_DEVICES": SECOND,
        "GPUSHARE_CARD_UUID": SECOND,
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "8",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "8",
        "ALIYUN_COM_GPU_MEM_DEV": "63",
        "ALIYUN_COM_GPU_MEM_ENFORCED": "nothing",
        "ALIYUN_COM_GPU_MEM_ALLOCATABLE": "1536",
        "ALIYUN_COM_GPU_MEM_FRACTION": "0.0943",
    }
    await kubelet.pre_start(wanted)


async def test_equal_pods_in_a_batch_get_their_own_gpus_whatever_the_order_of_binds(
    plugin, kubelet
) -> None:
    order = random.Random(7)
    binds = order.sample(range(30), 30)
    batch = [
        pod(
            f"p{n}",
            4,
            cards=(order.choice((FIRST, SECOND)),),
            seen=f"2026-11-21T10:00:00.{100_000_000 + n * 40_000:09d}Z",
            created=f"2026-11-21T09:59:{n // 3:02d}Z",
            assume_time=binds[n],
        )
        for n in range(30)
    ]
    for each in batch:
        await kubelet.admit(each)
    for each in batch:
        assert given(kubelet, each) == each.annotations["gpushare.aliyun.com/cards"]
        await kubelet.pre_start(each)


async def test_pods_of_several_containers_among_equal_ones(plugin, kubelet) -> None:
    pods = [
        pod("a", [4, 4], init=[4], cards=(FIRST,), created="2026-11-21T10:00:00Z"),
        pod("b", [4, 4], cards=(SECOND,), created="2026-11-21T10:00:01Z"),
        pod("c", 4, cards=(FIRST,), created="2026-11-21T10:00:02Z"),
    ]
    for each in pods:
        await kubelet.admit(each)
        for uid, container in kubelet.held:
            if uid == each.uid:
                assert (
                    given(kubelet, each, container) == each.annotations["gpushare.aliyun.com/cards"]
                )
    for each in pods:
        for container in each.spec.containers:
            await kubelet.pre_start(each, container.name)


async def test_a_rejected_pod_that_is_still_listed_is_not_served(plugin, kubelet) -> None:
    await kubelet.admit(pod("filler", 56, cards=(FIRST,)))
    await kubelet.admit(pod("filler-2", 60, cards=(SECOND,)))
    with pytest.raises(Rejected, match="Available"):
        await kubelet.admit(pod("too-much", [6, 6], cards=(FIRST,)))
    kubelet.held = {key: v for key, v in kubelet.held.items() if "too-much" not in key[0]}
    next_one = pod("next", 6, cards=(SECOND,))
    await kubelet.admit(next_one)
    assert given(kubelet, next_one) == SECOND


async def test_no_pod_that_waits_for_so_much_is_an_error_naming_the_nearest(
    plugin, kubelet
) -> None:
    await kubelet.admit(pod("a", 8, cards=(FIRST,)))
    kubelet.pods.append(pod("b", 9, cards=(FIRST,)))
    tag = plugin.cards.inventory.by_uuid(SECOND).tag
    ids = [f"{tag}00{n}" for n in range(2)]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await kubelet.allocate(ids)
    text = refused.value.details()
    assert "waits for 2 units" in text
    assert "default/a has all its devices" in text
    assert "default/b waits for 9 in container app-0" in text


async def test_a_pod_without_a_decision_is_rejected_with_the_cause_and_an_event(
    plugin, kubelet
) -> None:
    with pytest.raises(Rejected, match="kube-scheduler is not using the gpushare extender"):
        await kubelet.admit(pod("stranger", 8))
    await eventually(lambda: plugin.writes.events)
    assert not plugin.writes.conditions, "it has failed for good"


async def test_a_pod_whose_amounts_cannot_be_read_is_rejected_and_no_other(plugin, kubelet) -> None:
    good = pod("good", 8, cards=(SECOND,))
    for decided in ({}, {"cards": (FIRST,)}):
        stranger = too_large("stranger", **decided)
        with pytest.raises(Rejected, match=r"no GPU was chosen|more than 256 containers"):
            await kubelet.admit(stranger)
    await kubelet.admit(good)
    await kubelet.pre_start(good)


async def test_an_unhealthy_gpu_is_an_error_never_another_gpu(plugin, kubelet) -> None:
    plugin.driver.shown = CARDS[:1]
    await kubelet.until(lambda: kubelet.allocatable == 63)
    with pytest.raises(Rejected, match=f"GPU {SECOND} is unhealthy"):
        await kubelet.admit(pod("a", 8, cards=(SECOND,)))


async def test_a_silent_kubelet_fails_three_pods_at_most(plugin, kubelet, monkeypatch) -> None:
    monkeypatch.setattr(kubelet_outage, "PROBE_SECONDS", 0.05)
    monkeypatch.setattr(allocate, "WATCH_SECONDS", 0.05)
    kubelet.pods_fail = KubeletError("403")
    for number in range(3):
        with pytest.raises(Rejected, match="no pod of this node"):
            await kubelet.admit(pod(f"lost-{number}", 8, cards=(FIRST,)))
    await kubelet.until(lambda: kubelet.allocatable == 0)
    with pytest.raises(Rejected, match="Available: 0"):
        await kubelet.admit(pod("next", 8, cards=(FIRST,)))
    kubelet.pods_fail = None
    await kubelet.until(lambda: kubelet.allocatable == 126)


async def test_a_start_on_another_gpu_than_annotated_is_rejected(plugin, kubelet) -> None:
    wanted = pod("a", 8, cards=(SECOND,))
    await kubelet.admit(wanted)
    kubelet.pods = [pod("a", 8, uid=wanted.uid, cards=(FIRST,))]
    with pytest.raises(grpc.aio.AioRpcError, match=f"Allocate gave .* {SECOND}, .*delete the pod"):
        await kubelet.pre_start(wanted)
    await eventually(lambda: plugin.writes.conditions)
    [(uid, condition)] = plugin.writes.conditions
    assert (uid, condition.status, condition.reason) == (wanted.uid, "False", "AnswerStale")


async def test_without_the_kubelets_pods_only_a_harmless_choice_is_made(plugin, kubelet) -> None:
    same = [pod("a", 8, cards=(SECOND,)), pod("b", 8, cards=(SECOND,))]
    kubelet.pods_fail = KubeletError("connection refused")
    plugin.watch.replaced(same)
    await kubelet.admit(same[1])
    assert given(kubelet, same[1]) == SECOND
    apart = [pod("c", 5, cards=(FIRST,)), pod("d", 5, cards=(SECOND,))]
    plugin.watch.replaced(apart)
    with pytest.raises(Rejected, match="any of 2 pods on different GPUs"):
        await kubelet.admit(apart[0])


async def test_without_the_kubelets_pods_no_pod_fails_for_anothers_fault(
    plugin, kubelet, monkeypatch
) -> None:
    monkeypatch.setattr(kubelet_outage, "PROBE_SECONDS", 0.05)
    monkeypatch.setattr(allocate, "WATCH_SECONDS", 0.05)
    kubelet.pods_fail = KubeletError("connection refused")
    undecided, good = pod("undecided", 8), pod("good", 8, cards=(SECOND,))
    plugin.watch.replaced([undecided, good])
    for _ in range(3):
        with pytest.raises(Rejected, match=r"any of 2 pods .*connection refused"):
            await kubelet.admit(good)
    assert not plugin.writes.events, "which of them it was is not known"
    await kubelet.until(lambda: kubelet.allocatable == 0)


async def test_without_the_kubelets_pods_one_that_cannot_be_read_fails_alone(
    plugin, kubelet, monkeypatch
) -> None:
    monkeypatch.setattr(allocate, "WATCH_SECONDS", 0.05)
    kubelet.pods_fail = KubeletError("connection refused")
    stranger, good = too_large("stranger"), pod("good", 8, cards=(SECOND,))
    plugin.watch.replaced([stranger, good])
    await kubelet.admit(good)
    assert given(kubelet, good) == SECOND
    with pytest.raises(Rejected, match="no pod of this node waits for 1 units"):
        await kubelet.admit(stranger)


async def test_without_the_kubelets_pods_no_pod_gets_the_gpu_of_an_older_one(
    plugin, kubelet
) -> None:
    kubelet.pods_fail = KubeletError("connection refused")
    stale, meant = pod("stale", 8, cards=(FIRST,)), pod("meant", 8, cards=(SECOND,))
    first = pod("first", 4, cards=(FIRST,))
    plugin.watch.replaced([stale, first])
    await kubelet.admit(first)
    asyncio.get_running_loop().call_later(0.2, plugin.watch.changed, meant)
    with pytest.raises(Rejected, match="any of 2 pods on different GPUs"):
        await kubelet.admit(meant)
    plugin.watch.deleted(stale)
    again = pod("again", 8, cards=(SECOND,))
    plugin.watch.deleted(meant)
    asyncio.get_running_loop().call_later(0.2, plugin.watch.changed, again)
    await kubelet.admit(again)
    assert given(kubelet, again) == SECOND


async def test_a_plugin_restarted_between_two_containers_continues_the_pod(
    folder, kubelet, plugin
) -> None:
    wanted = pod("a", [4, 4], cards=(SECOND,), created="2026-11-21T10:00:05Z")
    kubelet.pods.append(wanted)
    kubelet.pods.append(pod("rejected", 4, cards=(FIRST,), created="2026-11-21T10:00:01Z"))
    tag = plugin.cards.inventory.by_uuid(SECOND).tag
    answered = api_pb2.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": SECOND})
    kubelet.hold(wanted, (f"{tag}00{n}" for n in range(4)), answered.SerializeToString())
    answer = await kubelet.allocate([f"{tag}01{n}" for n in range(4)])
    assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == SECOND
    await kubelet.pre_start(wanted)


async def test_a_container_that_is_asked_for_again_gets_the_same_answer(plugin, kubelet) -> None:
    """After it was served, before and after its pod shows that it runs."""
    wanted, equal = pod("a", 8, cards=(SECOND,)), pod("b", 8, cards=(FIRST,))
    await kubelet.admit(wanted)
    ids, first = kubelet.held[wanted.uid, "app-0"]
    for now in (wanted, pod("a", 8, uid=wanted.uid, cards=(SECOND,), started=True)):
        kubelet.pods = [now]
        assert (await kubelet.allocate(list(ids))).SerializeToString() == first
    await kubelet.admit(equal)
    assert given(kubelet, equal) == FIRST
    (kubelet.folder / "kubelet_internal_checkpoint").unlink()
    with pytest.raises(grpc.aio.AioRpcError, match="no pod of this node waits for 8 units"):
        await kubelet.allocate(list(ids))


async def test_two_allocates_at_once_are_never_for_one_container(plugin, kubelet) -> None:
    first, second = pod("a", 8, cards=(FIRST,)), pod("b", 8, cards=(SECOND,))
    kubelet.pods += [first, second]
    tag = plugin.cards.inventory.by_uuid(FIRST).tag
    sets = [[f"{tag}0{n:x}{place}" for n in range(8)] for place in range(2)]
    answers = await asyncio.gather(*(kubelet.allocate(ids) for ids in sets))
    assert {each.envs["NVIDIA_VISIBLE_DEVICES"] for each in answers} == {FIRST, SECOND}
    for owner, ids, answer in zip((first, second), sets, answers, strict=True):
        kubelet.hold(owner, ids, answer.SerializeToString())
    for owner, uuid in ((first, FIRST), (second, SECOND)):
        if given(kubelet, owner) == uuid:
            await kubelet.pre_start(owner)
            continue
        with pytest.raises(grpc.aio.AioRpcError, match="delete the pod"):
            await kubelet.pre_start(owner)


async def test_the_gpu_of_a_deleted_pod_is_not_given_to_the_next(plugin, kubelet) -> None:
    gone = pod("gone", 8, cards=(FIRST,), deleted="2026-11-21T10:00:09Z")
    kubelet.pods.append(gone)
    await kubelet.admit(pod("next", 8, cards=(SECOND,)))
    assert given(kubelet, kubelet.pods[-1]) == SECOND


@pytest.mark.parametrize("index", ["9", "-1", "0,0", "GPU-0", ""])
async def test_an_index_that_is_no_gpu_here_is_an_error_that_names_the_annotation(
    plugin, kubelet, index
) -> None:
    wanted = pod("a", 8, annotations={"ALIYUN_COM_GPU_MEM_IDX": index})
    with pytest.raises(Rejected, match="ALIYUN_COM_GPU_MEM_IDX"):
        await kubelet.admit(wanted)
