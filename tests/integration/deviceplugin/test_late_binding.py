"""With late binding a container starts on its pod's GPU, or does not start."""

import asyncio
import json

import grpc
import msgspec
import pytest
from prometheus_client import REGISTRY

from deviceplugin.cards import driver_watch
from deviceplugin.errors import KubeletError
from gpushare.contract import (
    ANNOTATION_ASSIGNED,
    ANNOTATION_CARDS,
    ANNOTATION_INDEX,
    ANNOTATION_RUNNING_ON,
)
from gpushare.errors import OutcomeUnknown
from gpushare.objects.model import PodStatus
from protos.deviceplugin.v1beta1 import api_pb2
from tests.fakes.driver import FakeDriver
from tests.fakes.kubelet import FakeKubelet, Rejected
from tests.fakes.pods import as_running, pod, too_large
from tests.integration.deviceplugin.plugin import CARDS, FIRST, SECOND, Plugin
from tests.waiting import eventually

pytestmark = pytest.mark.integration


@pytest.fixture
async def plugin(start) -> Plugin:
    return await start()


def environment(plugin: Plugin, kubelet: FakeKubelet, owner, container: str) -> dict[str, str]:
    """What a runtime with CDI would give: CDI's variables over Allocate's."""
    answer = kubelet.answer(owner, container)
    found = dict(answer.envs)
    for device in answer.cdi_devices:
        kind, _, name = device.name.partition("=")
        for path in plugin.specs._folder.glob("*.json"):
            spec = json.loads(path.read_text())
            assert spec["kind"] == kind
            for known in spec["devices"]:
                if known["name"] == name:
                    found |= dict(text.split("=", 1) for text in known["containerEdits"]["env"])
    return found


async def test_the_container_sees_the_gpu_that_was_decided_on(plugin, kubelet) -> None:
    wanted = pod("a", 8, cards=(SECOND,))
    await kubelet.admit(wanted)
    assert environment(plugin, kubelet, wanted, "app-0") == {"NVIDIA_VISIBLE_DEVICES": "void"}
    await kubelet.pre_start(wanted)
    assert environment(plugin, kubelet, wanted, "app-0") == {
        "NVIDIA_VISIBLE_DEVICES": SECOND,
        "GPUSHARE_CARD_UUID": SECOND,
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "8",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "8",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
        "ALIYUN_COM_GPU_MEM_ENFORCED": "nothing",
        "ALIYUN_COM_GPU_MEM_ALLOCATABLE": "7680",
        "ALIYUN_COM_GPU_MEM_FRACTION": "0.4718",
    }


async def test_equal_pods_admitted_in_any_order_keep_their_own_gpus(plugin, kubelet) -> None:
    first, second = pod("a", 8, cards=(FIRST,)), pod("b", 8, cards=(SECOND,))
    for each in (second, first):
        await kubelet.admit(each)
    for each, uuid in ((first, FIRST), (second, SECOND)):
        await kubelet.pre_start(each)
        seen = environment(plugin, kubelet, each, "app-0")
        assert seen["NVIDIA_VISIBLE_DEVICES"] == uuid


async def test_device_ids_lie_on_the_decided_gpu(plugin, kubelet) -> None:
    wanted = pod("a", [5, 6], cards=(SECOND,))
    await kubelet.admit(wanted)
    tag = plugin.cards.inventory.by_uuid(SECOND).tag
    ids = {i for held, _ in kubelet.held.values() for i in held}
    assert len(ids) == 11
    assert {device_id[:2] for device_id in ids} == {tag}


async def test_two_gpus_share_a_pods_ids_in_equal_parts(plugin, kubelet) -> None:
    wanted = pod("a", 8, cards=(FIRST, SECOND), labels={"aliyun.com/gpu-count": "2"})
    await kubelet.run(wanted)
    seen = environment(plugin, kubelet, wanted, "app-0")
    assert seen["NVIDIA_VISIBLE_DEVICES"] == f"{FIRST},{SECOND}"
    assert seen["ALIYUN_COM_GPU_MEM_IDX"] == "0,1"
    (ids, _), *_ = kubelet.held.values()
    tags = [device_id[:2] for device_id in ids]
    assert sorted(tags.count(tag) for tag in set(tags)) == [4, 4]


async def test_init_and_app_container_that_reuse_devices_both_start(plugin, kubelet) -> None:
    wanted = pod("a", 8, init=[8], cards=(FIRST,))
    await kubelet.admit(wanted)
    for container in ("init-0", "app-0"):
        await kubelet.pre_start(wanted, container)
        seen = environment(plugin, kubelet, wanted, container)
        assert seen["NVIDIA_VISIBLE_DEVICES"] == FIRST


async def test_a_pod_without_a_decision_is_rejected_with_the_cause(plugin, kubelet) -> None:
    with pytest.raises(Rejected, match="kube-scheduler is not using the gpushare extender"):
        await kubelet.admit(pod("stranger", 8))


async def test_a_pod_whose_amounts_cannot_be_read_is_rejected_and_no_other(plugin, kubelet) -> None:
    good = pod("good", 8, cards=(SECOND,))
    for decided in ({}, {"cards": (FIRST,)}):
        stranger = too_large("stranger", **decided)
        with pytest.raises(Rejected, match=r"no GPU was chosen|more than 256 containers"):
            await kubelet.admit(stranger)
    await kubelet.admit(good)
    await kubelet.pre_start(good)


async def test_without_the_kubelets_pods_the_start_is_still_exact(plugin, kubelet) -> None:
    kubelet.pods_fail = KubeletError("connection refused")
    good, stranger = pod("a", 8, cards=(SECOND,)), pod("stranger", 4)
    for each in (good, stranger):
        await kubelet.admit(each)
    plugin.watch.replaced([good, stranger])
    await kubelet.pre_start(good)
    assert environment(plugin, kubelet, good, "app-0")["NVIDIA_VISIBLE_DEVICES"] == SECOND
    with pytest.raises(grpc.aio.AioRpcError, match="not using the gpushare extender"):
        await kubelet.pre_start(stranger)


async def test_a_container_waits_while_its_gpu_is_lost_and_starts_when_it_is_back(
    plugin, kubelet
) -> None:
    wanted = pod("a", 8, cards=(SECOND,))
    await kubelet.admit(wanted)
    plugin.driver.shown = CARDS[:1]
    await kubelet.until(lambda: kubelet.allocatable == 15)
    lists = len(kubelet.lists)
    with pytest.raises(grpc.aio.AioRpcError, match=f"{SECOND} cannot be used: .*no longer shows"):
        await kubelet.pre_start(wanted)
    other = pod("b", 8, cards=(FIRST,))
    await kubelet.run(other)
    plugin.driver.shown = CARDS
    await kubelet.until(lambda: kubelet.allocatable == 30)
    await kubelet.pre_start(wanted)
    assert len(kubelet.lists) == lists + 1, "one message a change"


def changed_to_first(wanted):
    """What the API server shows after somebody has changed the decision of a pod on SECOND."""
    running_on = {ANNOTATION_RUNNING_ON: json.dumps({"app-0": {SECOND: 8}})}
    return pod("a", 8, uid=wanted.uid, cards=(FIRST,), annotations=running_on, started=True)


async def test_while_a_gpu_hangs_pods_of_the_others_are_admitted_and_start(
    plugin, kubelet, monkeypatch
) -> None:
    monkeypatch.setattr(driver_watch, "ANSWER_SECONDS", 0.1)
    wanted, other = pod("a", 8, cards=(SECOND,)), pod("b", 8, cards=(FIRST,))
    await kubelet.admit(wanted)
    plugin.driver.hang(1)
    await kubelet.until(lambda: kubelet.allocatable == 15)
    await kubelet.run(other)
    with pytest.raises(grpc.aio.AioRpcError, match=f"{SECOND} cannot be used: the driver does not"):
        await kubelet.pre_start(wanted)
    plugin.driver.let_go(1)
    await kubelet.until(lambda: kubelet.allocatable == 30)
    await kubelet.pre_start(wanted)


async def test_a_restarted_container_stays_on_the_gpu_on_record(plugin, kubelet) -> None:
    wanted = pod("a", 8, cards=(SECOND,))
    plugin.watch.changed(wanted)
    await kubelet.run(wanted)
    plugin.watch.changed(changed_to_first(wanted))
    await kubelet.pre_start(wanted)
    assert environment(plugin, kubelet, wanted, "app-0")["NVIDIA_VISIBLE_DEVICES"] == SECOND


async def test_a_record_that_contradicts_itself_starts_nothing(plugin, kubelet) -> None:
    wanted = pod("a", 8, cards=(SECOND,))
    await kubelet.admit(wanted)
    plugin.watch.changed(changed_to_first(wanted))  # nothing was seen before that could be kept
    with pytest.raises(grpc.aio.AioRpcError, match="one of them was changed"):
        await kubelet.pre_start(wanted)


async def test_a_decision_for_a_gpu_of_another_node_is_an_error(plugin, kubelet) -> None:
    wanted = pod("a", 8, cards=("GPU-elsewhere",))
    await kubelet.admit(wanted)
    with pytest.raises(grpc.aio.AioRpcError, match="not in the node"):
        await kubelet.pre_start(wanted)
    await eventually(lambda: plugin.writes.conditions)
    assert told(plugin) == [(wanted.uid, "False", "CardGone")]


def told(plugin: Plugin) -> list[tuple[str, str, str | None]]:
    return [(uid, each.status, each.reason) for uid, each in plugin.writes.conditions]


async def test_a_pod_whose_gpu_is_lost_has_a_condition_until_it_may_start(plugin, kubelet) -> None:
    wanted = pod("a", 8, cards=(SECOND,))
    plugin.watch.changed(wanted)
    await kubelet.admit(wanted)
    plugin.driver.shown = CARDS[:1]
    await kubelet.until(lambda: kubelet.allocatable == 15)
    for _ in range(3):
        with pytest.raises(grpc.aio.AioRpcError):
            await kubelet.pre_start(wanted)
    await eventually(lambda: plugin.writes.conditions and plugin.writes.events)
    plugin.driver.shown = CARDS
    await kubelet.until(lambda: kubelet.allocatable == 30)
    await kubelet.pre_start(wanted)
    await eventually(lambda: len(plugin.writes.conditions) == 2)
    assert told(plugin) == [
        (wanted.uid, "False", "CardGone"),
        (wanted.uid, "True", "Started"),
    ]
    [event] = plugin.writes.events
    assert SECOND in event["message"]


async def test_a_rejection_does_not_wait_for_the_api_server(plugin, kubelet) -> None:
    plugin.writes.fails = OutcomeUnknown("the API server is away")
    stranger = pod("a", 8, cards=("GPU-elsewhere",))
    await kubelet.admit(stranger)
    with pytest.raises(grpc.aio.AioRpcError, match="not in the node"):
        await kubelet.pre_start(stranger)
    good = pod("b", 8, cards=(FIRST,))
    await kubelet.run(good)
    plugin.writes.fails = None
    await eventually(lambda: plugin.writes.conditions and plugin.writes.events)


async def test_a_late_watch_delays_no_start(plugin, kubelet) -> None:
    old, new = pod("old", 10, cards=(FIRST,)), pod("new", 10, cards=(FIRST,))
    plugin.watch.replaced([old, new])
    for each in (old, new):
        await kubelet.admit(each)
    await kubelet.pre_start(old)
    asyncio.get_running_loop().call_later(0.1, plugin.watch.deleted, old)
    await kubelet.pre_start(new)
    assert not plugin.writes.conditions


@pytest.mark.parametrize("phase", ["", "Succeeded"])
async def test_a_broken_watch_does_not_keep_the_units_of_an_ended_pod(
    plugin, kubelet, phase
) -> None:
    old, new = pod("old", 10, cards=(FIRST,)), pod("new", 10, cards=(FIRST,))
    plugin.watch.replaced([old, new])
    for each in (old, new):
        await kubelet.admit(each)
    await kubelet.pre_start(old)
    kubelet.forget(old)
    if phase:
        kubelet.pods.append(msgspec.structs.replace(old, status=PodStatus(phase=phase)))
    await kubelet.pre_start(new)
    assert not plugin.writes.conditions


async def test_a_pod_that_bypasses_the_extender_exceeds_no_gpu(plugin, kubelet) -> None:
    rightful, forged = pod("rightful", 10, cards=(FIRST,)), pod("forged", 10, cards=(FIRST,))
    plugin.watch.replaced([rightful, forged])
    for each in (rightful, forged):
        await kubelet.admit(each)
    await kubelet.pre_start(rightful)
    full = r"requests 10 GiB .* which has 15 GiB, .* use 10 GiB"
    with pytest.raises(grpc.aio.AioRpcError, match=full):
        await kubelet.pre_start(forged)
    await kubelet.pre_start(rightful)
    await eventually(lambda: plugin.writes.conditions)
    assert told(plugin) == [(forged.uid, "False", "CardTooFull")]


async def test_where_it_runs_is_written_on_the_pod(plugin, kubelet) -> None:
    wanted = pod("a", [3, 5], cards=(SECOND,))
    await kubelet.admit(wanted)
    plugin.writes.fails = OutcomeUnknown("the API server is away")
    plugin.watch.changed(wanted)
    await kubelet.pre_start(wanted)
    plugin.watch.changed(as_running(wanted))
    await plugin.writes.tried.wait()
    plugin.writes.fails = None
    await plugin.writes.landed.wait()
    uid, written = plugin.writes.written[0]
    assert uid == wanted.uid
    assert written[ANNOTATION_ASSIGNED] == "true"
    assert json.loads(written[ANNOTATION_RUNNING_ON]) == {
        "app-0": {SECOND: 3},
        "app-1": {SECOND: 5},
    }


async def test_what_a_killed_predecessor_started_is_written_by_its_successor(
    folder, kubelet, plugin
) -> None:
    wanted = pod("a", 8, cards=(SECOND,))
    await kubelet.run(wanted)
    plugin.cards.adopt(None)
    successor = Plugin(folder, kubelet, FakeDriver(*CARDS), before=plugin.cards.saved())
    async with successor.running():
        successor.watch.replaced([pod("a", 8, uid=wanted.uid, cards=(SECOND,), started=True)])
        await successor.writes.landed.wait()
    uid, written = successor.writes.written[0]
    assert uid == wanted.uid
    assert json.loads(written[ANNOTATION_RUNNING_ON]) == {"app-0": {SECOND: 8}}


async def test_a_pod_that_never_started_is_not_reported_as_running(plugin, kubelet) -> None:
    waiting, running = pod("a", 8, cards=(SECOND,)), pod("b", 4, cards=(FIRST,))
    refused = pod("c", 4, cards=(FIRST,))  # by the runtime, after the plugin has said yes
    for each in (waiting, refused, running):
        await kubelet.admit(each)
        plugin.watch.changed(each)
    for each in (refused, running):
        await kubelet.pre_start(each)
    plugin.watch.changed(as_running(running))
    await plugin.writes.landed.wait()
    assert [uid for uid, _ in plugin.writes.written] == [running.uid]


@pytest.mark.parametrize("ids", [["zzzzz"], ["x" * 63], ["a0000"] * 3])
async def test_a_start_with_unknown_devices_is_an_error(plugin, kubelet, ids) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="no container holds") as refused:
        await kubelet.call("PreStartContainer", api_pb2.PreStartContainerRequest(devices_ids=ids))
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_broken_checkpoint_is_an_error_that_names_it(plugin, kubelet) -> None:
    wanted = pod("a", 8, cards=(SECOND,))
    await kubelet.admit(wanted)
    (kubelet.folder / "kubelet_internal_checkpoint").write_text('{"Data": {')
    with pytest.raises(grpc.aio.AioRpcError, match="checkpoint cannot be read"):
        await kubelet.pre_start(wanted)
    kubelet.write_checkpoint()
    await kubelet.pre_start(wanted)


async def test_only_an_index_is_decided_by_the_older_extender(plugin, kubelet) -> None:
    wanted = pod("a", 8, annotations={ANNOTATION_INDEX: "1"})
    assert ANNOTATION_CARDS not in wanted.annotations
    await kubelet.run(wanted)
    assert environment(plugin, kubelet, wanted, "app-0")["NVIDIA_VISIBLE_DEVICES"] == SECOND


@pytest.mark.parametrize(("first", "then"), [("late", "early"), ("early", "late")])
async def test_a_container_restarts_after_the_binding_was_changed(
    folder, kubelet, first, then
) -> None:
    wanted = pod("a", 8, cards=(SECOND,))
    before = Plugin(folder, kubelet, FakeDriver(*CARDS), binding=first)
    async with before.running():
        await kubelet.until(lambda: kubelet.allocatable == 30)
        await kubelet.admit(wanted)
    after = Plugin(folder, kubelet, FakeDriver(*CARDS), binding=then)
    async with after.running():
        await kubelet.until(lambda: kubelet.registrations >= 2 and kubelet.allocatable == 30)
        await kubelet.pre_start(wanted)
        seen = environment(after, kubelet, wanted, "app-0")
    assert seen["NVIDIA_VISIBLE_DEVICES"] == SECOND


async def test_ids_of_another_gpu_are_served_and_counted_once(plugin, kubelet) -> None:
    filler = pod("filler", 12, cards=(SECOND,))
    await kubelet.admit(filler)
    wanted = pod("a", 8, cards=(SECOND,))
    before = counted()
    await kubelet.admit(wanted)
    for _ in range(2):
        await kubelet.pre_start(wanted)
    seen = environment(plugin, kubelet, wanted, "app-0")
    assert seen["NVIDIA_VISIBLE_DEVICES"] == SECOND
    assert counted() - before == 5


async def test_a_pod_that_was_deleted_leaves_its_devices_to_the_next(plugin, kubelet) -> None:
    gone, wanted = pod("gone", 8, cards=(FIRST,)), pod("a", 8, cards=(SECOND,))
    await kubelet.admit(gone)
    kubelet.pods.clear()
    await kubelet.admit(wanted)
    kubelet.hold(gone, *kubelet.held[wanted.uid, "app-0"])
    await kubelet.pre_start(wanted)
    assert environment(plugin, kubelet, wanted, "app-0")["NVIDIA_VISIBLE_DEVICES"] == SECOND


def counted() -> float:
    return REGISTRY.get_sample_value("gpushare_deviceplugin_ids_off_card_total") or 0.0
