"""Containers get their GPU with CDI edits, a changed binding, and a pod's own variable."""

import json
import os

import grpc
import msgspec
import pytest

from deviceplugin.allocation.pre_start import Starts
from deviceplugin.cdi.nvidia_edits import COMMAND
from deviceplugin.cdi.rules import Choice
from deviceplugin.kubelet.node_pod import NodePod
from gpushare.contract import ANNOTATION_RUNNING_ON
from gpushare.objects.model import EnvVar
from tests.fakes.kubelet import FakeKubelet, Rejected
from tests.fakes.pods import pod
from tests.integration.deviceplugin.plugin import CARDS, FIRST, SECOND, Plugin
from tests.integration.deviceplugin.test_late_binding import environment
from tests.waiting import eventually

pytestmark = pytest.mark.integration

LATE, EARLY = Choice("late", "a test"), Choice("early", "a test")
BOTH = Choice("early", "a test", names_cdi_too=True)


def without_cdi(kubelet: FakeKubelet, owner, container: str = "app-0") -> str:
    return kubelet.answer(owner, container).envs["NVIDIA_VISIBLE_DEVICES"]


def with_cdi(plugin: Plugin, kubelet: FakeKubelet, owner, container: str = "app-0") -> str:
    return environment(plugin, kubelet, owner, container)["NVIDIA_VISIBLE_DEVICES"]


def setting_its_card(owner, place: int = 0, value: str | None = None):
    containers = list(owner.spec.containers)
    env = (EnvVar("PATH"), EnvVar("NVIDIA_VISIBLE_DEVICES", value))
    containers[place] = msgspec.structs.replace(containers[place], env=env)
    spec = msgspec.structs.replace(owner.spec, containers=tuple(containers))
    return NodePod.of(msgspec.structs.replace(owner, spec=spec))


# The binding that changes.


async def test_each_container_is_served_by_the_answer_that_it_got_whatever_is_chosen_then(
    start, kubelet
) -> None:
    plugin = await start()
    owners = [pod(f"p{n}", 4, cards=((FIRST, SECOND)[n % 2],)) for n in range(6)]
    for owner, choice in zip(owners, [LATE, BOTH, EARLY] * 2, strict=True):
        plugin.binding.now = choice
        await kubelet.admit(owner)
    for choice in (LATE, BOTH, EARLY):
        plugin.binding.now = choice
        for place, owner in enumerate(owners):
            await kubelet.pre_start(owner)
            wanted = (FIRST, SECOND)[place % 2]
            assert with_cdi(plugin, kubelet, owner) == wanted
            seen = without_cdi(kubelet, owner)
            assert seen == ("void" if place % 3 == 0 else wanted), "never all cards"


async def test_in_doubt_a_container_gets_its_gpu_whether_or_not_the_cdi_name_is_resolved(
    start, kubelet
) -> None:
    plugin = await start(binding="early")
    plugin.binding.now = BOTH
    wanted = pod("a", 8, cards=(SECOND,))
    await kubelet.admit(wanted)
    assert without_cdi(kubelet, wanted) == SECOND
    assert kubelet.answer(wanted).cdi_devices
    await kubelet.pre_start(wanted)
    assert with_cdi(plugin, kubelet, wanted) == SECOND
    kubelet.pods = [pod("a", 8, uid=wanted.uid, cards=(FIRST,))]
    with pytest.raises(grpc.aio.AioRpcError, match=f"Allocate gave .* {SECOND}, .*delete the pod"):
        await kubelet.pre_start(wanted)
    assert with_cdi(plugin, kubelet, wanted) == SECOND, "not another card behind the same answer"


async def test_a_new_binding_is_in_the_inventory_and_moves_no_device(start, kubelet) -> None:
    plugin = await start()
    lists, devices = len(kubelet.lists), dict(kubelet.devices)
    version = plugin.cards.version
    plugin.cards.set_binding("early")
    assert plugin.cards.inventory.binding == "early"
    assert plugin.cards.version > version, "it is published"
    plugin.cards.seen(CARDS)
    assert plugin.cards.inventory.binding == "early"
    await kubelet.admit(pod("a", 8, cards=(SECOND,)))
    assert (len(kubelet.lists), kubelet.devices) == (lists, devices)


async def test_after_a_reboot_a_container_is_given_its_gpu_again(start, kubelet, folder) -> None:
    plugin = await start()
    wanted = pod("a", 8, cards=(SECOND,))
    await kubelet.run(wanted)
    for path in (folder / "cdi").iterdir():  # a reboot empties /run
        path.unlink()
    (folder / "cdi").rmdir()
    await kubelet.restart()
    await kubelet.until(lambda: kubelet.allocatable == 30)
    await kubelet.pre_start(wanted)  # no Allocate: the kubelet has kept its answer
    assert with_cdi(plugin, kubelet, wanted) == SECOND


# A pod that sets NVIDIA_VISIBLE_DEVICES itself.


@pytest.mark.parametrize("choice", [EARLY, BOTH])
async def test_early_binding_refuses_a_pod_that_sets_its_gpu_itself(start, kubelet, choice) -> None:
    plugin = await start(binding="early")
    plugin.binding.now = choice
    with pytest.raises(Rejected, match=r"default/a: container app-1 sets NVIDIA_VISIBLE_DEVICES"):
        await kubelet.admit(setting_its_card(pod("a", [4, 4], cards=(SECOND,)), 1))
    await eventually(lambda: plugin.writes.events)
    (event,) = plugin.writes.events
    assert (event["reason"], event["involvedObject"]["name"]) == ("GpushareCannotStart", "a")
    assert "remove the variable from the pod" in event["message"]
    assert not plugin.writes.conditions, "it has failed, and waits for nothing"
    asks_for_nothing = pod("b", [4, 0], cards=(SECOND,))
    await kubelet.admit(setting_its_card(asks_for_nothing, 1, "void"))


async def test_late_binding_overrules_a_pod_that_sets_its_gpu_itself(start, kubelet) -> None:
    plugin = await start()
    wanted = setting_its_card(pod("a", 4, cards=(SECOND,)))
    await kubelet.run(wanted)
    assert with_cdi(plugin, kubelet, wanted) == SECOND


# Cards by CDI.

NVIDIA = {
    "cdiVersion": "0.7.0",
    "kind": "nvidia.com/gpu",
    "containerEdits": {
        "env": ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_CTK=1"],
        "mounts": [{"hostPath": "/lib/libcuda.so.1", "containerPath": "/lib/libcuda.so.1"}],
    },
    "devices": [
        {"name": uuid, "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{place}"}]}}
        for place, uuid in enumerate((FIRST, SECOND))
    ],
}


async def test_by_cdi_a_container_gets_the_edits_of_its_gpu_and_no_gpu_of_the_runtime(
    start, kubelet, folder
) -> None:
    etc = folder / "etc-cdi"
    etc.mkdir()
    plugin = await start(inject="cdi", nvidia_cdi_dirs=(etc, folder / "cdi"))
    wanted = pod("a", 8, cards=(SECOND,))
    await kubelet.admit(wanted)
    with pytest.raises(grpc.aio.AioRpcError, match=COMMAND):
        await kubelet.pre_start(wanted)
    (etc / "nvidia.json").write_text(json.dumps(NVIDIA))
    plugin.watch.changed(wanted)
    await kubelet.pre_start(wanted)
    assert environment(plugin, kubelet, wanted, "app-0") == {
        "NVIDIA_CTK": "1",
        "NVIDIA_VISIBLE_DEVICES": "void",
        "GPUSHARE_CARD_UUID": SECOND,
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "8",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "8",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
        "ALIYUN_COM_GPU_MEM_ENFORCED": "nothing",
        "ALIYUN_COM_GPU_MEM_ALLOCATABLE": "7680",
        "ALIYUN_COM_GPU_MEM_FRACTION": "0.4718",
    }
    (path,) = (folder / "cdi").glob("gpushare-*.json")
    written = json.loads(path.read_text())
    assert written["cdiVersion"] == "0.7.0"
    (device,) = written["devices"]
    assert device["containerEdits"]["deviceNodes"] == [{"path": "/dev/nvidia1"}]
    assert device["containerEdits"]["mounts"] == NVIDIA["containerEdits"]["mounts"]


async def test_a_successor_reads_back_the_gpu_that_was_given_by_cdi(start, kubelet, folder) -> None:
    (folder / "nvidia.json").write_text(json.dumps(NVIDIA))
    first = await start(inject="cdi", nvidia_cdi_dirs=(folder,))
    wanted = pod("a", 8, cards=(SECOND,))
    await kubelet.run(wanted)
    running = pod("a", 8, uid=wanted.uid, cards=(SECOND,), started=True)
    first.watch.replaced([running])
    first.reports._started.clear()  # as its successor begins
    ((reported, uuids),) = first.reports._due()
    assert (reported.uid, uuids) == (wanted.uid, (SECOND,))
    await first.writes.landed.wait()
    assert json.loads(first.writes.written[0][1][ANNOTATION_RUNNING_ON]) == {"app-0": {SECOND: 8}}


async def test_by_cdi_nothing_is_promised_while_binding_is_early(start, kubelet, folder) -> None:
    plugin = await start(binding="early", inject="cdi", nvidia_cdi_dirs=(folder,))
    with pytest.raises(Rejected, match="--inject=cdi needs a runtime that resolves CDI names"):
        await kubelet.admit(pod("a", 8, cards=(SECOND,)))
    assert "set --inject=runtime" in plugin.binding.why_not


# What is left in the CDI folder.


@pytest.mark.parametrize("choice", [LATE, BOTH])
async def test_reused_devices_have_no_file_of_the_previous_pod(start, kubelet, choice) -> None:
    """A runtime reads a changed file a little later: until then it must not find the old card."""
    plugin = await start()
    plugin.binding.now = choice
    before, after = pod("before", 8, cards=(FIRST,)), pod("after", 8, cards=(SECOND,))
    await kubelet.run(before)
    ids, _ = kubelet.held[before.uid, "app-0"]
    kubelet.forget(before)
    kubelet.pods = [after]
    answer = await kubelet.allocate(list(ids))
    kubelet.hold(after, ids, answer.SerializeToString())
    assert with_cdi(plugin, kubelet, after) == ("void" if choice is LATE else SECOND)
    await kubelet.pre_start(after)
    assert with_cdi(plugin, kubelet, after) == SECOND


def age(folder, *names: str) -> None:
    for name in names:
        os.utime(folder / "cdi" / name, (1000, 1000))


def swept_now(starts: Starts) -> None:
    starts._swept_at = float("-inf")
    starts._sweep()


async def test_files_of_deleted_pods_are_deleted_once_that_is_certain(
    start, kubelet, folder
) -> None:
    plugin = await start()
    starts = plugin.service._starts
    held, watched, gone = (pod(name, 2, cards=(FIRST,)) for name in ("held", "watched", "gone"))
    for each in (held, watched, gone):
        await kubelet.run(each)
    for each in (watched, gone):
        kubelet.forget(each)
    kubelet.write_checkpoint()
    (folder / "cdi" / "gpushare-killed.new").write_text("{")
    names = {path.name for path in (folder / "cdi").iterdir()}
    age(folder, *names)

    swept_now(starts)
    assert {path.name for path in (folder / "cdi").iterdir()} == names, "the watch is not there yet"
    plugin.watch.replaced([watched])
    (kubelet.folder / "kubelet_internal_checkpoint").write_text("{")
    swept_now(starts)
    assert {path.name for path in (folder / "cdi").iterdir()} == names, "who holds is not known"
    kubelet.write_checkpoint()
    swept_now(starts)
    left = {
        json.loads(path.read_text())["annotations"]["gpushare.aliyun.com/pod-uid"]
        for path in (folder / "cdi").iterdir()
    }
    assert left == {held.uid, watched.uid}
