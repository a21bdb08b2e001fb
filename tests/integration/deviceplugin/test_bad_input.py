"""Any input of the kubelet is answered, or rejected clearly, within three seconds."""

import asyncio

import grpc
import pytest

from deviceplugin.cards import device_list
from localcluster.wait import patient
from protos.deviceplugin.v1beta1 import api_pb2
from tests.fakes.driver import card
from tests.fakes.kubelet import Rejected
from tests.fakes.pods import pod
from tests.integration.deviceplugin.plugin import Plugin

pytestmark = pytest.mark.integration

CARDS = [card(0, 100_000), card(1, 100_000)]
FIRST, SECOND = (card.uuid for card in CARDS)


@pytest.fixture(params=["late", "early"])
async def plugin(start, request) -> Plugin:
    return await start(*CARDS, binding=request.param, unit_mib=1)


async def test_a_pod_may_take_a_whole_gpu_of_very_many_units(plugin, kubelet) -> None:
    wanted = pod("large", 100_000, cards=(SECOND,))
    await kubelet.admit(wanted)
    ids, _ = kubelet.held[wanted.uid, "app-0"]
    assert {text[:2] for text in ids} == {plugin.cards.inventory.by_uuid(SECOND).tag}
    await kubelet.pre_start(wanted)


async def test_no_devices_at_all_is_an_error(plugin, kubelet) -> None:
    start = kubelet.call("PreStartContainer", api_pb2.PreStartContainerRequest())
    for call in (kubelet.allocate([]), start):
        with pytest.raises(grpc.aio.AioRpcError, match="names no devices") as refused:
            await call
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_no_containers_are_answered_with_none(plugin, kubelet) -> None:
    answer = await kubelet.call("Allocate", api_pb2.AllocateRequest())
    assert not answer.container_responses
    answer = await kubelet.call("GetPreferredAllocation", api_pb2.PreferredAllocationRequest())
    assert not answer.container_responses


def units_of(plugin, uuid: str, count: int) -> list[str]:
    tag = plugin.cards.inventory.by_uuid(uuid).tag
    return [device_list.device_id(tag, unit) for unit in range(count)]


async def test_a_device_named_twice_is_an_error(plugin, kubelet) -> None:
    kubelet.pods.append(pod("a", 2, cards=(FIRST,)))
    first, second = units_of(plugin, FIRST, 2)
    with pytest.raises(
        grpc.aio.AioRpcError, match="names 3 devices, of which only 2 are different"
    ) as bad:
        await kubelet.allocate([first, second, second])
    assert bad.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await kubelet.allocate([first, second])


OLDER = [f"GPU-{'0' * 30}-_-{n}" for n in range(2)]


@pytest.mark.parametrize("ids", [OLDER, ["", "x"], ["!!000", "!!001"], ["0" * 10_000, "a"]])
async def test_devices_that_no_gpu_here_has_are_an_error_that_names_one(
    plugin, kubelet, ids: list[str]
) -> None:
    kubelet.pods.append(pod("a", 2, cards=(FIRST,)))
    with pytest.raises(grpc.aio.AioRpcError, match="2 of 2 devices belong to no GPU of this node"):
        await kubelet.allocate(ids)


async def test_an_older_plugins_devices_are_served_to_the_live_pod_that_holds_them(
    plugin, kubelet
) -> None:
    runs, ended = pod("a", 2, cards=(FIRST,), started=True), pod("gone", 2, cards=(SECOND,))
    kubelet.pods.append(runs)
    kubelet.pods.append(pod("waits", 2, cards=(SECOND,)))
    for owner in (runs, ended):  # the checkpoint keeps entries of pods that are gone
        kubelet.hold(owner, OLDER)
    answer = await kubelet.allocate(OLDER)
    kubelet.hold(runs, OLDER, answer.SerializeToString())
    await kubelet.pre_start(runs)
    assert given(plugin, answer) == FIRST


def given(plugin, answer) -> str:
    """The card that a container gets in the end, by whichever binding."""
    if not answer.cdi_devices:
        return answer.envs["NVIDIA_VISIBLE_DEVICES"]
    share = answer.cdi_devices[0].name.partition("=")[2]
    return plugin.specs.read(share).environment["NVIDIA_VISIBLE_DEVICES"]


async def test_two_hundred_thousand_devices_at_once_are_answered_in_time(plugin, kubelet) -> None:
    every = [*kubelet.devices]
    assert len(every) == 200_000
    wanted = pod("all", 200_000, cards=(FIRST,))
    kubelet.pods.append(wanted)
    for ids, text in ((every, ""), ([*every, every[0]], "only 200000 are different")):
        try:
            await kubelet.allocate(ids)
            assert not text
        except grpc.aio.AioRpcError as refused:
            assert text
            assert text in str(refused.details())  # noqa: PT017 - one of the two is served


@pytest.mark.parametrize("size", [-1, 0, 10, 1_000_000])
async def test_a_wish_of_any_size_is_answered(plugin, kubelet, size: int) -> None:
    available = units_of(plugin, FIRST, 50)
    kubelet.pods.append(pod("a", 10, cards=(FIRST,)))
    wish = {"available_deviceIDs": available, "allocation_size": size}
    request = api_pb2.PreferredAllocationRequest(container_requests=[wish])
    answer = await kubelet.call("GetPreferredAllocation", request)
    chosen = list(answer.container_responses[0].deviceIDs)
    assert len(chosen) == (10 if size == 10 else 0)


async def test_bytes_that_are_no_message_end_the_call_alone(plugin, kubelet) -> None:
    call = kubelet._channel.unary_unary("/v1beta1.DevicePlugin/Allocate")
    with pytest.raises(grpc.aio.AioRpcError):
        await call(b"\xff\xff\xff", timeout=patient(5))
    wanted = pod("a", 10, cards=(FIRST,))
    await kubelet.admit(wanted)


async def test_an_answer_is_given_within_three_seconds_whatever_hangs(plugin, kubelet) -> None:
    async def hang() -> list:
        await asyncio.Event().wait()
        return []

    kubelet.fetch = hang
    with pytest.raises(grpc.aio.AioRpcError, match="no answer within 3 s"):
        await kubelet.allocate(units_of(plugin, FIRST, 1))


async def test_a_checkpoint_that_cannot_be_read_does_not_fail_new_pods(plugin, kubelet) -> None:
    (kubelet.folder / "kubelet_internal_checkpoint").write_bytes(b"\x00" * 10)
    await kubelet.admit(pod("a", 10, cards=(FIRST,)))


@pytest.mark.parametrize(
    "hostile",
    [
        {"ALIYUN_COM_GPU_MEM_IDX": "99999999999999999999"},
        {"ALIYUN_COM_GPU_MEM_IDX": "-1"},
        {"ALIYUN_COM_GPU_MEM_IDX": "0", "gpushare.aliyun.com/cards": "../../etc/passwd"},
        {"ALIYUN_COM_GPU_MEM_IDX": "0", "gpushare.aliyun.com/cards": ",".join([FIRST] * 2)},
        {"ALIYUN_COM_GPU_MEM_IDX": "0", "gpushare.aliyun.com/running-on": '{"app-0":{"x":1}}'},
    ],
)
async def test_hostile_annotations_start_nothing(plugin, kubelet, hostile) -> None:
    wanted = pod("a", 10, annotations=hostile)
    try:
        await kubelet.admit(wanted)
    except Rejected as refused:
        assert "default/a" in str(refused)  # noqa: PT017 - refused at once, or at the start
        return
    with pytest.raises(grpc.aio.AioRpcError, match="default/a"):
        await kubelet.pre_start(wanted)
