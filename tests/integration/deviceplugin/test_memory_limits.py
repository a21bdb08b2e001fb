"""What limits a container's memory, and that its own variables do not."""

import json
from pathlib import Path

import grpc
import msgspec
import pytest

from deviceplugin.cdi.rules import Choice
from deviceplugin.kubelet.node_pod import NodePod
from gpushare.contract import ANNOTATION_ISOLATION
from gpushare.objects.model import (
    EnvVar,
)
from gpushare.objects.scheduling import Present
from tests.fakes.driver import card
from tests.fakes.kubelet import Rejected
from tests.fakes.pods import pod
from tests.integration.deviceplugin.plugin import FIRST, SECOND
from tests.integration.deviceplugin.test_injection import NVIDIA
from tests.integration.deviceplugin.test_late_binding import environment
from tests.waiting import eventually

pytestmark = pytest.mark.integration

ABLE = (card(0, why_no_limit=""), card(1, 81_920, why_no_limit=""))
UNABLE = "driver 580 cannot limit memory"
HOOK = {
    "hookName": "createRuntime",
    "path": "/opt/nvidia-cdi-hook",
    "args": ["nvidia-cdi-hook", "apply-cuda-memory-limits", "--driver-root", "/d", "--gpu-id"],
}
CHOICES = {
    "late": Choice("late", "a test"),
    "early": Choice("early", "a test"),
    "both": Choice("early", "a test", names_cdi_too=True),
}
TWO = {"aliyun.com/gpu-count": "2"}
LIMITS = ("NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT")


def limits(plugin, kubelet, owner) -> tuple[str | None, ...]:
    found = environment(plugin, kubelet, owner, "app-0")
    return tuple(found.get(name) for name in LIMITS)


def with_hooks(*uuids: str) -> str:
    """NVIDIA's CDI file, whose devices of these names have NVIDIA's hook."""
    devices = [
        {
            "name": each["name"],
            "containerEdits": each["containerEdits"]
            | ({"hooks": [hook(each["name"])]} if each["name"] in uuids else {}),
        }
        for each in NVIDIA["devices"]
    ]
    return json.dumps(NVIDIA | {"devices": devices})


def hook(uuid: str) -> dict:
    return HOOK | {"args": [*HOOK["args"], uuid]}


def edits(folder: Path) -> dict:
    """What the one share's file has for the runtime."""
    (path,) = (folder / "cdi").glob("gpushare-*.json")
    (device,) = json.loads(path.read_text())["devices"]
    return device["containerEdits"]


def stated(plugin) -> list[tuple[str, str]]:
    return [(card.enforces, card.why_not_more) for card in plugin.cards.inventory.cards]


async def is_stated(plugin, *enforces: str) -> None:
    await eventually(lambda: tuple(what for what, _ in stated(plugin)) == enforces)


def requiring(owner):
    meta = owner.metadata
    annotations = {**(meta.annotations or {}), ANNOTATION_ISOLATION: "required"}
    meta = msgspec.structs.replace(meta, annotations=annotations)
    return NodePod.of(msgspec.structs.replace(owner, metadata=meta))


def reading_variables(owner):
    """The pod with variables by ``envFrom`` in its container."""
    (container,) = owner.spec.containers
    containers = (msgspec.structs.replace(container, env_from=(Present(),)),)
    spec = msgspec.structs.replace(owner.spec, containers=containers)
    return NodePod.of(msgspec.structs.replace(owner, spec=spec))


@pytest.fixture
def quick(monkeypatch) -> None:
    """NVIDIA's files and the binding are looked at all the time."""
    monkeypatch.setattr("deviceplugin.allocation.injection.CHECK_SECONDS", 0.01)


def setting(owner, name: str = LIMITS[0], value: str = "70000"):
    """The pod with a variable of its own in its container."""
    (container,) = owner.spec.containers
    containers = (msgspec.structs.replace(container, env=(EnvVar(name, value),)),)
    spec = msgspec.structs.replace(owner.spec, containers=containers)
    return NodePod.of(msgspec.structs.replace(owner, spec=spec))


@pytest.mark.parametrize("inject", ["auto", "runtime", "runtime-cdi"])
async def test_the_driver_limits_each_container_to_its_share_of_each_gpu(
    start, kubelet, folder, inject
) -> None:
    (folder / "nvidia.json").write_text(with_hooks(FIRST, SECOND))
    plugin = await start(*ABLE, inject=inject, nvidia_cdi_dirs=(folder,))
    await is_stated(plugin, "driver", "driver")
    one, two = pod("a", [8, 3], cards=(FIRST,)), pod("b", 6, cards=(FIRST, SECOND), labels=TWO)
    await kubelet.run(one)
    assert limits(plugin, kubelet, one) == ("0", "8192")
    await kubelet.pre_start(one, "app-1")
    assert environment(plugin, kubelet, one, "app-1")["NVIDIA_GPU_MEMORY_LIMIT"] == "3072"
    await kubelet.run(two)
    assert limits(plugin, kubelet, two) == ("0", "3072")


@pytest.mark.parametrize("inject", ["auto", "runtime"])
async def test_every_limited_container_has_nvidias_hook_once_for_each_gpu(
    start, kubelet, folder, inject
) -> None:
    """NVIDIA's runtime adds none in its mode legacy, and a file may have it for one GPU only."""
    (folder / "nvidia.json").write_text(with_hooks(FIRST))
    plugin = await start(*ABLE, inject=inject, nvidia_cdi_dirs=(folder,))
    await is_stated(plugin, "driver", "driver")
    await kubelet.run(pod("b", 6, cards=(FIRST, SECOND), labels=TWO))
    assert edits(folder)["hooks"] == [hook(FIRST), hook(SECOND)]


async def test_without_nvidias_hook_nothing_is_limited_and_the_inventory_says_why(
    start, kubelet, folder, quick
) -> None:
    (folder / "nvidia.json").write_text(json.dumps(NVIDIA))
    plugin = await start(*ABLE, inject="auto", nvidia_cdi_dirs=(folder,))
    await eventually(lambda: "install NVIDIA's container toolkit 1.20.1" in stated(plugin)[0][1])
    wanted = pod("a", 8, cards=(FIRST,))
    await kubelet.run(wanted)
    assert limits(plugin, kubelet, wanted) == ("0", None)
    assert "hooks" not in edits(folder)
    (folder / "nvidia.json").write_text(with_hooks(FIRST, SECOND))
    await is_stated(plugin, "driver", "driver")


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("inject", ["auto", "runtime", "runtime-cdi"])
async def test_where_limits_are_off_every_container_reserves_nothing_and_is_not_limited(
    start, kubelet, folder, inject, choice
) -> None:
    (folder / "nvidia.json").write_text(with_hooks(FIRST, SECOND))
    plugin = await start(*ABLE, inject=inject, nvidia_cdi_dirs=(folder,), memory_limit="off")
    plugin.binding.now = CHOICES[choice]
    assert stated(plugin) == [("nothing", "--memory-limit=off is set")] * 2
    for owner in (pod("a", 8, cards=(FIRST,)), pod("b", 8, cards=(FIRST, SECOND), labels=TWO)):
        await kubelet.run(owner)
        assert limits(plugin, kubelet, owner) == ("0", None)


async def test_where_nothing_is_limited_no_container_has_the_hook_that_obeys_its_image(
    start, kubelet, folder
) -> None:
    (folder / "nvidia.json").write_text(with_hooks(FIRST, SECOND))
    await start(*ABLE, inject="cdi", nvidia_cdi_dirs=(folder,), memory_limit="off")
    await kubelet.run(pod("a", 8, cards=(FIRST,)))
    assert edits(folder)["hooks"] == []


async def test_with_early_binding_nothing_is_limited_and_the_inventory_says_why(
    start, kubelet, folder
) -> None:
    (folder / "nvidia.json").write_text(with_hooks(FIRST, SECOND))
    plugin = await start(*ABLE, binding="early", nvidia_cdi_dirs=(folder,))
    await eventually(lambda: "with early binding" in stated(plugin)[0][1])
    wanted = pod("a", 8, cards=(FIRST,))
    await kubelet.run(wanted)
    assert limits(plugin, kubelet, wanted) == ("0", None)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("inject", ["auto", "runtime", "runtime-cdi"])
async def test_where_one_gpu_of_a_container_cannot_nothing_is_written(
    start, kubelet, folder, inject, choice
) -> None:
    (folder / "nvidia.json").write_text(with_hooks(FIRST, SECOND))
    shown = ABLE[0], card(1, why_no_limit=UNABLE)
    plugin = await start(*shown, inject=inject, nvidia_cdi_dirs=(folder,))
    await is_stated(plugin, "driver", "nothing")
    assert stated(plugin)[1] == ("nothing", UNABLE)
    plugin.binding.now = CHOICES[choice]
    for owner in (pod("a", 8, cards=(SECOND,)), pod("b", 8, cards=(FIRST, SECOND), labels=TWO)):
        await kubelet.run(owner)
        assert limits(plugin, kubelet, owner) == (None, None)


async def test_a_gpu_in_mig_mode_is_limited_by_nothing(start, folder) -> None:
    (folder / "nvidia.json").write_text(with_hooks(FIRST, SECOND))
    plugin = await start(ABLE[0], card(1, is_mig=True, why_no_limit=""), nvidia_cdi_dirs=(folder,))
    await is_stated(plugin, "driver", "nothing")
    assert "MIG" in stated(plugin)[1][1]


async def test_limits_that_the_plugin_cannot_read_are_set_and_not_promised(
    start, kubelet, folder
) -> None:
    (folder / "nvidia.json").write_text(with_hooks(FIRST, SECOND))
    shown = (card(0, why_no_limit="", hides_limits="no permission"), ABLE[1])
    plugin = await start(*shown, nvidia_cdi_dirs=(folder,))
    await is_stated(plugin, "nothing", "driver")
    wanted = pod("a", 8, cards=(FIRST,))
    await kubelet.run(wanted)
    assert limits(plugin, kubelet, wanted) == ("0", "8192")
    found = environment(plugin, kubelet, wanted, "app-0")
    assert found["ALIYUN_COM_GPU_MEM_ENFORCED"] == "nothing"


async def test_allocate_answers_with_the_limit_because_the_hook_takes_the_first_variable(
    start, kubelet, folder
) -> None:
    """With containerd those of the pod and of CDI files come later."""
    (folder / "nvidia.json").write_text(with_hooks(FIRST, SECOND))
    plugin = await start(*ABLE, nvidia_cdi_dirs=(folder,))
    await is_stated(plugin, "driver", "driver")
    two = pod("b", 6, cards=(FIRST, SECOND), labels=TWO)
    await kubelet.admit(two)
    envs = kubelet.answer(two).envs
    assert [envs[name] for name in LIMITS] == ["0", "3072"]


async def test_an_answer_with_a_limit_is_stale_once_the_driver_can_limit_no_longer(
    start, kubelet, folder
) -> None:
    (folder / "nvidia.json").write_text(with_hooks(FIRST, SECOND))
    plugin = await start(*ABLE, nvidia_cdi_dirs=(folder,))
    await is_stated(plugin, "driver", "driver")
    wanted = pod("a", 8, cards=(FIRST,))
    await kubelet.run(wanted)
    plugin.driver.shown = (card(0, why_no_limit=UNABLE), card(1, 81_920, why_no_limit=UNABLE))
    await is_stated(plugin, "nothing", "nothing")
    with pytest.raises(grpc.aio.AioRpcError, match=r"it cannot now.* so delete the pod"):
        await kubelet.pre_start(wanted)


async def test_a_pod_that_requires_a_limit_does_not_start_without_one(
    start, kubelet, folder
) -> None:
    (folder / "nvidia.json").write_text(with_hooks(FIRST, SECOND))
    plugin = await start(ABLE[0], card(1, why_no_limit=UNABLE), nvidia_cdi_dirs=(folder,))
    await is_stated(plugin, "driver", "nothing")
    await kubelet.run(requiring(pod("a", 8, cards=(FIRST,))))
    refused = requiring(pod("b", 8, cards=(SECOND,)))
    await kubelet.admit(refused)
    with pytest.raises(grpc.aio.AioRpcError, match=f"must limit its memory.*{SECOND}: {UNABLE}"):
        await kubelet.pre_start(refused)
    plugin.watch.changed(refused)
    await eventually(lambda: plugin.writes.conditions)
    ((uid, condition),) = plugin.writes.conditions
    assert (uid, condition.status, condition.reason) == (refused.uid, "False", "MemoryNotLimited")


async def test_early_binding_refuses_a_pod_that_requires_a_limit_at_its_admission(
    start, kubelet
) -> None:
    await start(*ABLE, binding="early")
    with pytest.raises(Rejected, match="must limit its memory"):
        await kubelet.admit(requiring(pod("a", 8, cards=(FIRST,))))


async def test_a_node_that_must_limit_and_cannot_takes_no_pods_and_starts_none(
    start, kubelet, folder
) -> None:
    (folder / "nvidia.json").write_text(with_hooks(FIRST, SECOND))
    plugin = await start(*ABLE, nvidia_cdi_dirs=(folder,), memory_limit="require")
    await is_stated(plugin, "driver", "driver")
    await eventually(lambda: not plugin.cards.why_blocked)
    wanted = pod("a", 8, cards=(FIRST,))
    await kubelet.run(wanted)
    plugin.driver.shown = (card(0, why_no_limit=UNABLE), ABLE[1])
    await eventually(lambda: UNABLE in plugin.cards.why_blocked)
    assert not any(card.is_healthy for card in plugin.cards.inventory.cards)
    with pytest.raises(grpc.aio.AioRpcError, match="it cannot now"):
        await kubelet.pre_start(wanted)
    plugin.driver.shown = ABLE
    await eventually(lambda: not plugin.cards.why_blocked)
    await kubelet.pre_start(wanted)


async def test_a_container_is_told_what_limits_it_and_what_it_can_allocate(
    start, kubelet, folder
) -> None:
    (folder / "nvidia.json").write_text(with_hooks(FIRST, SECOND))
    plugin = await start(ABLE[0], card(1, why_no_limit=UNABLE), nvidia_cdi_dirs=(folder,))
    await is_stated(plugin, "driver", "nothing")
    for name, gpu, enforced in (("a", FIRST, "driver"), ("b", SECOND, "nothing")):
        owner = pod(name, 8, cards=(gpu,))
        await kubelet.run(owner)
        found = environment(plugin, kubelet, owner, "app-0")
        assert found["ALIYUN_COM_GPU_MEM_ENFORCED"] == enforced
        assert found["ALIYUN_COM_GPU_MEM_ALLOCATABLE"] == "7680"


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("choice", CHOICES)
async def test_a_pod_that_sets_one_itself_is_refused(start, kubelet, choice, name) -> None:
    plugin = await start(*ABLE)
    plugin.binding.now = CHOICES[choice]
    with pytest.raises(Rejected, match=f"container app-0 sets .*{name}.* remove the variable"):
        await kubelet.admit(setting(pod("a", 8, cards=(FIRST,)), name))


async def test_containers_with_the_same_devices_keep_their_own_variables(
    start, kubelet, folder
) -> None:
    """The kubelet gives an init container's devices to a container, and both have one CDI file."""
    plugin = await start(*ABLE, nvidia_cdi_dirs=(folder,), framework_limits=True)
    owner = setting(pod("a", 8, cards=(FIRST,)), "XLA_PYTHON_CLIENT_MEM_FRACTION")
    init = msgspec.structs.replace(owner.spec.containers[0], name="init-0", env=None)
    spec = msgspec.structs.replace(owner.spec, init_containers=(init,))
    owner = NodePod.of(msgspec.structs.replace(owner, spec=spec))
    await kubelet.admit(owner)
    await kubelet.pre_start(owner, "init-0")
    found = environment(plugin, kubelet, owner, "app-0")
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in found
    assert "PYTORCH_ALLOC_CONF" in found


async def test_a_container_that_was_allocated_before_limits_does_not_start_where_it_needs_one(
    start, kubelet, folder
) -> None:
    (folder / "nvidia.json").write_text(with_hooks(FIRST, SECOND))
    plugin = await start(*ABLE, nvidia_cdi_dirs=(folder,))
    await is_stated(plugin, "driver", "driver")
    plugin.binding.now = CHOICES["early"]
    owner = pod("a", 8, cards=(FIRST,))
    await kubelet.admit(owner)
    plugin.binding.now = CHOICES["late"]
    plugin.watch.changed(requiring(owner))
    with pytest.raises(
        grpc.aio.AioRpcError, match="what the container was allocated does not allow it"
    ):
        await kubelet.pre_start(owner)


async def test_what_env_from_may_hold_is_no_limit_where_allocate_has_answered_without_one(
    start, kubelet, folder, quick
) -> None:
    plugin = await start(*ABLE, nvidia_cdi_dirs=(folder,))
    owner = reading_variables(pod("a", 8, cards=(FIRST,)))
    await kubelet.admit(owner)
    (folder / "nvidia.json").write_text(with_hooks(FIRST, SECOND))
    await is_stated(plugin, "driver", "driver")
    await kubelet.pre_start(owner)
    found = environment(plugin, kubelet, owner, "app-0")
    assert found["ALIYUN_COM_GPU_MEM_ENFORCED"] == "nothing"
    await kubelet.run(again := reading_variables(pod("b", 8, cards=(SECOND,))))
    found = environment(plugin, kubelet, again, "app-0")
    assert found["ALIYUN_COM_GPU_MEM_ENFORCED"] == "driver"
