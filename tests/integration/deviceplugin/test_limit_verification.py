"""Limits of running containers that are not what the containers were given."""

import hashlib
from dataclasses import replace

import msgspec
import pytest
from prometheus_client import REGISTRY

from deviceplugin.driver.interface import MemoryLimit
from deviceplugin.kubelet.node_pod import NodePod
from deviceplugin.usage.rules import MIB, NOT_READ, Usage, shares
from gpushare.objects.model import ContainerState, ContainerStatus, PodCondition
from gpushare.objects.scheduling import Present
from tests.fakes.pods import pod
from tests.integration.deviceplugin.plugin import FIRST, OWN_CGROUP, SECOND
from tests.integration.deviceplugin.test_memory_limits import (
    ABLE,
    TWO,
    is_stated,
    requiring,
    stated,
    with_hooks,
)
from tests.waiting import eventually

pytestmark = pytest.mark.integration

NONE = MemoryLimit(used_bytes=0)


def measured(plugin, *owners, limit: MemoryLimit) -> Usage:
    """What the plugin measures of running pods whose containers have this limit."""
    rows = shares([started(owner) for owner in owners], plugin.cards.inventory)
    return Usage(tuple(replace(row, limit=limit) for row in rows))


def of(mib: int) -> MemoryLimit:
    return MemoryLimit(hard_bytes=mib * MIB, used_bytes=0)


def unique(uid: str) -> str:
    return hashlib.sha256(uid.encode()).hexdigest()


def started(owner):
    """The pod as the kubelet reports it after the start of its containers."""
    statuses = tuple(
        ContainerStatus(each.name, f"containerd://{unique(owner.uid)}", ContainerState(Present()))
        for each in owner.spec.containers
    )
    status = msgspec.structs.replace(owner.status, phase="Running", container_statuses=statuses)
    return NodePod.of(msgspec.structs.replace(owner, status=status))


def with_condition(owner, condition: PodCondition):
    status = msgspec.structs.replace(owner.status, conditions=(condition,))
    return NodePod.of(msgspec.structs.replace(owner, status=status))


@pytest.fixture
async def limiting(start, folder):
    """A plugin on a node whose driver limits memory."""
    (folder / "nvidia.json").write_text(with_hooks(FIRST, SECOND))
    plugin = await start(*ABLE, nvidia_cdi_dirs=(folder,))
    await is_stated(plugin, "driver", "driver")
    return plugin


def events(plugin) -> list[tuple[str, str]]:
    return [(each["reason"], each["message"]) for each in plugin.writes.events]


def conditions(plugin) -> list[tuple[str, str]]:
    return [(each.status, each.reason) for _, each in plugin.writes.conditions]


def uids(plugin) -> set[str]:
    return {uid for uid, _ in plugin.writes.conditions}


async def test_a_limit_that_is_in_force_is_not_reported(limiting, kubelet) -> None:
    one, two = pod("a", 8, cards=(FIRST,)), pod("b", 6, cards=(FIRST, SECOND), labels=TWO)
    for owner, limit_mib in ((one, 8192), (two, 3072)):
        await kubelet.run(owner)
        limiting.verification.check(measured(limiting, owner, limit=of(limit_mib)))
    assert (events(limiting), limiting.writes.conditions) == ([], [])
    assert REGISTRY.get_sample_value("gpushare_deviceplugin_limits_missing") == 0


async def test_a_missing_limit_is_told_once_and_a_pod_that_requires_it_must_go(
    limiting, kubelet
) -> None:
    one, strict = pod("a", 8, cards=(FIRST,)), requiring(pod("b", 8, cards=(SECOND,)))
    for owner in (one, strict):
        await kubelet.run(owner)
        limiting.watch.changed(started(owner))
    for _ in range(2):
        limiting.verification.check(measured(limiting, one, strict, limit=NONE))
    await eventually(lambda: len(events(limiting)) == 2 and limiting.writes.conditions)
    assert {reason for reason, _ in events(limiting)} == {"MemoryLimitMissing"}
    assert "was given 8192 MiB" in events(limiting)[0][1]
    ((uid, condition),) = limiting.writes.conditions
    assert (uid, condition.status, condition.reason) == (strict.uid, "False", "MemoryLimitMissing")
    assert REGISTRY.get_sample_value("gpushare_deviceplugin_limits_missing") == 2


async def test_a_container_whose_image_changes_its_limit_must_go_whatever_its_pod_requires(
    limiting, kubelet
) -> None:
    owner = pod("a", 8, cards=(FIRST,))
    await kubelet.run(owner)
    limiting.watch.changed(started(owner))
    limiting.verification.check(measured(limiting, owner, limit=of(16_000)))
    await eventually(lambda: conditions(limiting) == [("False", "MemoryLimitChanged")])
    assert [reason for reason, _ in events(limiting)] == ["MemoryLimitChanged"]


async def test_the_start_of_another_container_does_not_hide_that_a_limit_is_missing(
    limiting, kubelet
) -> None:
    strict = requiring(pod("b", [8, 3], cards=(SECOND,)))
    await kubelet.run(strict)
    limiting.watch.changed(started(strict))
    rows = measured(limiting, strict, limit=NONE).containers
    limiting.verification.check(Usage(rows[:1]))
    await eventually(lambda: conditions(limiting))
    await kubelet.pre_start(strict, "app-1")
    limiting.verification.check(Usage(rows[:1]))
    assert set(conditions(limiting)) == {("False", "MemoryLimitMissing")}
    condition = limiting.writes.conditions[0][1]
    limiting.watch.changed(with_condition(started(strict), condition))
    limiting.verification.check(Usage())
    await eventually(lambda: conditions(limiting)[-1][0] == "True")


async def test_a_restarted_plugin_leaves_the_condition_until_it_has_measured(
    limiting, kubelet
) -> None:
    strict = requiring(pod("b", 8, cards=(SECOND,)))
    await kubelet.run(strict)
    missing = PodCondition("gpushare.aliyun.com/CardUsable", "False", "MemoryLimitMissing", "x")
    limiting.watch.changed(with_condition(started(strict), missing))
    other = pod("c", 1, cards=(FIRST,))
    refused = PodCondition("gpushare.aliyun.com/CardUsable", "False", "CardUnhealthy", "x")
    limiting.watch.changed(with_condition(started(other), refused))
    await eventually(lambda: conditions(limiting))
    assert uids(limiting) == {other.uid}
    silent = measured(limiting, strict, limit=MemoryLimit(why_unknown=NOT_READ))
    for _ in range(2):
        limiting.verification.check(silent)
        third = pod(f"d{len(limiting.writes.conditions)}", 1, cards=(FIRST,))
        limiting.watch.changed(with_condition(started(third), refused))
        await eventually(lambda uid=third.uid: uid in uids(limiting))
    assert strict.uid not in uids(limiting), "the driver has said nothing yet"
    limiting.verification.check(measured(limiting, strict, limit=of(8192)))
    await eventually(lambda: strict.uid in uids(limiting))


async def test_an_image_that_reserves_memory_is_found_with_early_binding_too(
    start, kubelet, folder
) -> None:
    (folder / "nvidia.json").write_text(with_hooks(FIRST, SECOND))
    plugin = await start(*ABLE, nvidia_cdi_dirs=(folder,), binding="early")
    owner = pod("a", 8, cards=(FIRST,))
    await kubelet.run(owner)
    plugin.watch.changed(started(owner))
    plugin.verification.check(measured(plugin, owner, limit=MemoryLimit(soft_bytes=MIB)))
    await eventually(lambda: conditions(plugin) == [("False", "MemoryLimitChanged")])


async def test_a_limit_that_cannot_be_read_evicts_nobody_and_ends_the_promise(
    limiting, kubelet, monkeypatch
) -> None:
    monkeypatch.setattr("deviceplugin.usage.verification.UNREAD_SECONDS", 0.0)
    strict = requiring(pod("b", 8, cards=(SECOND,)))
    await kubelet.run(strict)
    limiting.watch.changed(started(strict))
    unread = MemoryLimit(why_unknown="no permission")
    limiting.verification.check(measured(limiting, strict, limit=unread))
    await eventually(lambda: events(limiting))
    assert "its limit cannot be read (no permission)" in events(limiting)[0][1]
    assert conditions(limiting) == []
    assert stated(limiting)[1] == ("nothing", "the driver tells the limit of no container")
    limiting.verification.check(measured(limiting, strict, limit=of(8192)))
    await is_stated(limiting, "driver", "driver")


async def test_a_container_that_was_promised_no_limit_is_not_missed_one(
    start, kubelet, folder
) -> None:
    (folder / "nvidia.json").write_text(with_hooks(FIRST, SECOND))
    plugin = await start(*ABLE, nvidia_cdi_dirs=(folder,), memory_limit="off")
    owner = pod("a", 8, cards=(FIRST,))
    await kubelet.run(owner)
    plugin.verification.check(measured(plugin, owner, limit=NONE))
    assert events(plugin) == []


async def test_a_plugin_that_sees_no_cgroup_of_pods_promises_nothing(start, folder) -> None:
    (folder / "nvidia.json").write_text(with_hooks(FIRST, SECOND))
    (folder / "empty").mkdir()
    plugin = await start(*ABLE, nvidia_cdi_dirs=(folder,), cgroup_dir=folder / "empty")
    await eventually(lambda: "mount the machine's /sys/fs/cgroup" in stated(plugin)[0][1])
    (folder / "empty" / OWN_CGROUP).mkdir(parents=True)
    plugin.verification.check(Usage())
    await is_stated(plugin, "driver", "driver")
