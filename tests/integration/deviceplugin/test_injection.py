"""A container gets access to its GPU and no other, or does not start."""

import json
from dataclasses import replace

import grpc
import pytest

from deviceplugin.cards.state_file import Saved
from deviceplugin.cards.survey import Terms, survey
from deviceplugin.cdi.nvidia_edits import COMMAND
from deviceplugin.cdi.rules import Choice
from gpushare.contract import ANNOTATION_ASSIGNED
from gpushare.objects.model import Container, EnvVar, Node, NodeStatus, NodeSystemInfo, ObjectMeta
from tests.fakes.kubelet import FakeKubelet, Rejected
from tests.fakes.pods import pod
from tests.integration.deviceplugin.plugin import CARDS, FIRST, SECOND, Plugin
from tests.integration.deviceplugin.test_binding_change import setting_its_card
from tests.integration.deviceplugin.test_late_binding import environment
from tests.waiting import eventually

pytestmark = pytest.mark.integration

NAME = f"runtime.nvidia.com/gpu={SECOND}"
BOTH = Choice("early", "a test", names_cdi_too=True)
CLASSES = frozenset({"nvidia", "nvidia-cdi", "nvidia-legacy"})
NVIDIA = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [
        {"name": name, "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{place}"}]}}
        for place, uuid in enumerate((FIRST, SECOND))
        for name in (str(place), uuid)
    ],
}
OTHER = Container(name="other")
HIDING = Container(name="other", env=(EnvVar("NVIDIA_VISIBLE_DEVICES", "void"),))


def visible(plugin: Plugin, kubelet: FakeKubelet, owner) -> tuple[str, str]:
    """The two variables that say which card it is, with the CDI name resolved."""
    found = environment(plugin, kubelet, owner, "app-0")
    return found["NVIDIA_VISIBLE_DEVICES"], found["GPUSHARE_CARD_UUID"]


@pytest.mark.parametrize(
    ("own_variable", "runtime_class", "value"),
    [
        ("all", "nvidia", SECOND),
        ("void", "nvidia", NAME),
        ("void", "nvidia-cdi", NAME),
        ("all", "nvidia-cdi", NAME),
        ("void", "nvidia-legacy", SECOND),
        ("all", "nvidia-legacy", SECOND),
    ],
)
async def test_the_gpu_is_named_as_the_nvidia_runtime_of_the_pod_reads_it(
    start, kubelet, own_variable, runtime_class, value
) -> None:
    plugin = await start(inject="auto", visible_devices=own_variable, runtime_classes=CLASSES)
    for choice in (Choice("late", "a test"), Choice("early", "a test"), BOTH):
        plugin.binding.now = choice
        wanted = pod("a", 8, cards=(SECOND,), runtime_class=runtime_class)
        await kubelet.run(wanted)
        assert visible(plugin, kubelet, wanted) == (value, SECOND)
        kubelet.forget(wanted)


@pytest.mark.parametrize(
    ("inject", "own_variable", "value"),
    [("runtime", "void", SECOND), ("runtime-cdi", "all", NAME)],
)
async def test_a_form_that_is_set_counts_whatever_the_plugin_sees_itself(
    start, kubelet, inject, own_variable, value
) -> None:
    plugin = await start(inject=inject, visible_devices=own_variable)
    wanted = pod("a", 8, cards=(SECOND,))
    await kubelet.run(wanted)
    assert visible(plugin, kubelet, wanted) == (value, SECOND)


async def test_the_inventory_follows_nvidias_cdi_files(start, kubelet, folder, monkeypatch) -> None:
    monkeypatch.setattr("deviceplugin.allocation.injection.CHECK_SECONDS", 0.01)
    folders = (folder,)
    plugin = await start(
        inject="auto", nvidia_cdi_dirs=folders, visible_devices="void", runtime_classes=CLASSES
    )
    assert plugin.cards.inventory.injection == "runtime-cdi"
    assert plugin.cards.inventory.runtime_classes == CLASSES
    (folder / "nvidia.json").write_text(json.dumps(NVIDIA))
    await eventually(lambda: plugin.cards.inventory.injection == "cdi")
    (folder / "nvidia.json").unlink()
    await eventually(lambda: plugin.cards.inventory.injection == "runtime-cdi")


async def test_by_nvidias_edits_a_pod_gets_its_gpu_under_any_runtime(
    start, kubelet, folder
) -> None:
    (folder / "nvidia.json").write_text(json.dumps(NVIDIA))
    plugin = await start(inject="auto", nvidia_cdi_dirs=(folder,), runtime_classes=CLASSES)
    wanted = pod("a", 8, cards=(SECOND,), others=(OTHER,))
    await kubelet.run(wanted)
    assert visible(plugin, kubelet, wanted) == ("void", SECOND)
    (path,) = (folder / "cdi").glob("gpushare-*.json")
    (device,) = json.loads(path.read_text())["devices"]
    assert device["containerEdits"]["deviceNodes"] == [{"path": "/dev/nvidia1"}]


async def test_where_names_may_be_dropped_both_ways_lead_to_the_same_gpu(
    start, kubelet, folder
) -> None:
    (folder / "nvidia.json").write_text(json.dumps(NVIDIA))
    folders = (folder,)
    plugin = await start(
        binding="early", inject="auto", nvidia_cdi_dirs=folders, runtime_classes=CLASSES
    )
    plugin.binding.now = BOTH
    assert plugin.cards.inventory.injection == "runtime"
    bare, wanted = (
        pod(n, 8, cards=(SECOND,), runtime_class=c) for n, c in (("b", None), ("a", "nvidia"))
    )
    await kubelet.run(wanted)
    assert kubelet.answer(wanted).envs["NVIDIA_VISIBLE_DEVICES"] == SECOND
    assert visible(plugin, kubelet, wanted) == ("void", SECOND)
    kubelet.forget(wanted)
    await kubelet.admit(bare)
    with pytest.raises(grpc.aio.AioRpcError, match=r"set spec\.runtimeClassName: nvidia"):
        await kubelet.pre_start(bare)


@pytest.mark.parametrize("binding", ["late", "early"])
@pytest.mark.parametrize("runtime_class", [None, "runc"])
async def test_no_container_starts_without_access_to_its_gpu(
    start, kubelet, binding, runtime_class
) -> None:
    plugin = await start(binding=binding, inject="auto", runtime_classes=CLASSES)
    wanted = pod("a", 8, cards=(SECOND,), runtime_class=runtime_class)
    await kubelet.admit(wanted)
    plugin.watch.changed(wanted)
    with pytest.raises(grpc.aio.AioRpcError, match=r"default/a: .* set spec.runtimeClassName"):
        await kubelet.pre_start(wanted)
    await eventually(lambda: plugin.writes.conditions)
    assert plugin.writes.conditions[0][1].reason == "NeedsNvidiaRuntime"
    assert not list((plugin.specs._folder).glob("gpushare-*.json"))


@pytest.mark.parametrize("binding", ["late", "early"])
async def test_a_pod_whose_other_containers_would_see_every_gpu_is_rejected(
    start, kubelet, binding
) -> None:
    plugin = await start(binding=binding, inject="auto")
    with pytest.raises(Rejected, match="set NVIDIA_VISIBLE_DEVICES to void in them"):
        await kubelet.admit(pod("a", 8, cards=(SECOND,), others=(OTHER,)))
    with pytest.raises(Rejected, match="set NVIDIA_VISIBLE_DEVICES to void in them"):
        await kubelet.admit(pod("b", 8, init=[0], cards=(SECOND,)))
    hiding = pod("c", 8, cards=(SECOND,), others=(HIDING,))
    await kubelet.run(hiding)
    assert visible(plugin, kubelet, hiding) == (SECOND, SECOND)


async def test_one_of_several_equal_pods_is_rejected_only_if_all_would_be(start, kubelet) -> None:
    plugin = await start(inject="auto")
    first, second = (pod(name, 8, cards=(SECOND,), others=(OTHER,)) for name in "ab")
    hiding = pod("c", 8, cards=(SECOND,), others=(HIDING,))
    kubelet.pods = [second]
    with pytest.raises(Rejected, match="every GPU of the node"):
        await kubelet.admit(first)
    kubelet.pods = [second]
    await kubelet.run(hiding)
    assert visible(plugin, kubelet, hiding) == (SECOND, SECOND)


async def test_a_pod_that_ran_before_the_update_restarts_with_its_other_containers(
    start, kubelet
) -> None:
    plugin = await start()
    wanted = pod("a", 8, cards=(SECOND,), others=(HIDING,))
    await kubelet.admit(wanted)
    older = pod("a", 8, uid=wanted.uid, cards=(SECOND,), others=(OTHER,))
    kubelet.pods = [older]
    with pytest.raises(grpc.aio.AioRpcError, match="every GPU of the node"):
        await kubelet.pre_start(older)
    older.annotations[ANNOTATION_ASSIGNED] = "true"
    await kubelet.pre_start(older)
    assert visible(plugin, kubelet, older) == (SECOND, SECOND)


@pytest.mark.parametrize(
    "key", ["cdi.k8s.io/x", "nvidia.cdi.k8s.io/container.other", "nvidia.cdi.k8s.io"]
)
async def test_a_pod_whose_annotation_opens_gpus_is_not_admitted(start, kubelet, key) -> None:
    await start()
    found = {key: "runtime.nvidia.com/gpu=all"}
    wanted = pod("a", 8, cards=(SECOND,), annotations=found)
    with pytest.raises(Rejected, match=f"annotation {key} names a CDI device"):
        await kubelet.admit(wanted)
    harmless = pod("b", 8, cards=(SECOND,), annotations={key: "vendor.com/net=eth0"})
    await kubelet.run(harmless)


async def test_on_cri_o_a_share_needs_nvidias_edits(start, kubelet, folder) -> None:
    plugin = await start(inject="auto", nvidia_cdi_dirs=(folder,))
    info = NodeSystemInfo("cri-o://1.34.0", "v1.34.4")
    plugin.binding.node_seen(Node(ObjectMeta(name="n"), NodeStatus(node_info=info)))
    wanted = pod("a", 8, cards=(SECOND,))
    await kubelet.admit(wanted)
    with pytest.raises(grpc.aio.AioRpcError, match="set --binding=early or --inject=cdi"):
        await kubelet.pre_start(wanted)
    (folder / "nvidia.json").write_text(json.dumps(NVIDIA))
    await kubelet.pre_start(wanted)
    assert visible(plugin, kubelet, wanted) == ("void", SECOND)


async def test_until_the_node_is_read_it_may_be_one_of_cri_o(start, kubelet, folder) -> None:
    last = replace(survey(None, CARDS, Terms(1024)).inventory, injection="cdi")
    plugin = await start(inject="auto", nvidia_cdi_dirs=(folder,), before=Saved(last))
    wanted = pod("a", 8, cards=(SECOND,))
    await kubelet.admit(wanted)
    with pytest.raises(grpc.aio.AioRpcError, match="CRI-O passes no variable"):
        await kubelet.pre_start(wanted)
    info = NodeSystemInfo("containerd://2.2.0", "v1.34.4")
    plugin.binding.node_seen(Node(ObjectMeta(name="n"), NodeStatus(node_info=info)))
    await kubelet.pre_start(wanted)
    assert visible(plugin, kubelet, wanted) == (SECOND, SECOND)


async def test_on_cri_o_no_variable_of_the_pods_own_reaches_nvidias_runtime(
    start, kubelet, folder
) -> None:
    (folder / "nvidia.json").write_text(json.dumps(NVIDIA))
    classes = frozenset({"nvidia"})
    plugin = await start(inject="auto", nvidia_cdi_dirs=(folder,), runtime_classes=classes)
    info = NodeSystemInfo("cri-o://1.34.0", "v1.34.4")
    plugin.binding.node_seen(Node(ObjectMeta(name="n"), NodeStatus(node_info=info)))
    named = setting_its_card(pod("a", 8, cards=(SECOND,), runtime_class="nvidia"))
    await kubelet.admit(named)
    with pytest.raises(grpc.aio.AioRpcError, match="sets NVIDIA_VISIBLE_DEVICES itself"):
        await kubelet.pre_start(named)
    by_runc = setting_its_card(pod("b", 8, cards=(FIRST,)))
    await kubelet.run(by_runc)
    assert visible(plugin, kubelet, by_runc) == ("void", FIRST)


async def test_a_node_that_needs_cdi_files_and_has_none_is_not_ready(
    start, folder, monkeypatch
) -> None:
    monkeypatch.setattr("deviceplugin.allocation.injection.CHECK_SECONDS", 0.01)
    plugin = await start(inject="cdi", nvidia_cdi_dirs=(folder,))
    await eventually(lambda: COMMAND in plugin.injections.why_not)
    (folder / "nvidia.json").write_text(json.dumps(NVIDIA))
    await eventually(lambda: not plugin.injections.why_not)


async def test_a_container_with_a_simulated_gpu_gets_its_variables_and_no_device(
    start, kubelet, folder
) -> None:
    plugin = await start(inject="cdi", simulated_mib=(16384, 16384), runtime_classes=CLASSES)
    assert (plugin.cards.inventory.injection, plugin.why_not_ready()) == ("cdi", [])
    wanted = pod("a", 8, cards=(SECOND,))
    await kubelet.run(wanted)
    assert visible(plugin, kubelet, wanted) == ("void", SECOND)
    (path,) = (folder / "cdi").glob("gpushare-*.json")
    (device,) = json.loads(path.read_text())["devices"]
    assert device["containerEdits"].keys() == {"env"}
