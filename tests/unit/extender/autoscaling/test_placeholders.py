"""The leader creates placeholders that are missing and deletes those that are not needed."""

from collections.abc import Mapping
from typing import Any

import pytest

from extender.autoscaling.placeholders import Placeholders
from extender.decisions.autoscaling.placeholders import AFTER_SECONDS
from gpushare.contract import GATE_ADMISSION, LABEL_PLACEHOLDER
from gpushare.errors import ApiError, NoRoom
from gpushare.objects.model import Pod
from gpushare.objects.scheduling import SchedulingGate
from gpushare.process.time_slices import Turns
from gpushare.quota.namespaces import Namespace
from gpushare.quota.quota import Quota
from tests.builders import pod
from tests.unit.extender.scripted import Bench, bound, changed

NAMESPACE = "gpushare-system"


class Writer:
    """An API server whose watch shows what was written at once."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.created: list[str] = []
        self.deleted: list[str] = []
        self.refusal: ApiError | None = None

    async def create_pod(self, namespace: str, body: Mapping[str, Any]) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.created.append(body["metadata"]["labels"][LABEL_PLACEHOLDER])
        self._bench.cluster.pod_changed(made(self.created[-1], namespace))

    async def delete_pod(self, pod: Pod) -> None:
        self.deleted.append(pod.labels[LABEL_PLACEHOLDER])
        self._bench.cluster.pod_deleted(pod)


def made(uid: str, namespace: str = NAMESPACE) -> Pod:
    found = pod(f"placeholder-{uid}", 32, labels={LABEL_PLACEHOLDER: uid})
    return changed(found, {"namespace": namespace})


class Stage:
    def __init__(self, *, is_on: bool = True) -> None:
        self.bench = Bench(16, 16)
        self.writer = Writer(self.bench)
        self.bench.add(bound("a", 9, "GPU-0"), bound("b", 9, "GPU-1"))
        self.placeholders = Placeholders(
            self.bench.cluster.state,
            Turns(),
            self.writer,
            self.bench.notice,
            namespace=NAMESPACE,
            is_on=is_on,
        )

    def needy(self, name: str = "p") -> None:
        self.bench.add(pod(name, 8))
        self.bench.cluster.pods.answer(f"uid-{name}", 1, ["no room"], self.bench.time.monotonic())
        self.bench.time.now += AFTER_SECONDS

    async def check(self, times: int = 1) -> None:
        for _ in range(times):
            await self.placeholders.check()
            self.bench.time.now += 60


async def test_one_is_created_and_its_pod_is_told():
    stage = Stage()
    stage.needy()
    await stage.check(3)
    assert stage.writer.created == ["uid-p"]
    assert [(name, reason) for name, reason, _ in stage.bench.told] == [
        ("p", "GpushareNodeMissing")
    ]


async def test_it_is_deleted_once_a_node_has_room_for_its_pod():
    """Otherwise autoscalers would add another node as soon as the pod uses the new one."""
    stage = Stage()
    stage.needy()
    await stage.check()
    stage.bench.cluster.pod_deleted(stage.bench.kube.pods["a"])
    await stage.check()
    assert stage.writer.deleted == ["uid-p"]


@pytest.mark.parametrize("change", ["deleted", "bound", "gated"])
async def test_it_is_deleted_once_its_pod_no_longer_waits(change):
    stage = Stage()
    stage.needy()
    await stage.check()
    now = stage.bench.kube.pods["p"]
    if change == "deleted":
        stage.bench.cluster.pod_deleted(now)
    elif change == "bound":
        stage.bench.add(bound("p", 8, node="m"))
    else:
        gate = SchedulingGate(GATE_ADMISSION)
        stage.bench.add(changed(now, spec={"scheduling_gates": (gate,)}))
    await stage.check()
    assert stage.writer.deleted == ["uid-p"]


async def test_none_is_created_for_a_pod_that_the_quota_of_its_namespace_keeps_waiting():
    stage = Stage()
    stage.needy()
    stage.bench.cluster.state.namespaces.put(Namespace("default", quota=Quota(20)))
    await stage.check(3)
    assert stage.writer.created == []


async def test_those_of_a_former_leader_are_deleted_without_the_setting():
    stage = Stage(is_on=False)
    stage.needy()
    stage.bench.add(made("uid-p"), made("uid-of-another", "users"))
    await stage.check(2)
    assert stage.writer.deleted == ["uid-p"]
    assert not stage.writer.created


async def test_a_refusal_is_not_repeated_at_once():
    stage = Stage()
    stage.needy()
    stage.writer.refusal = ApiError("forbidden", code=403)
    await stage.placeholders.check()
    stage.writer.refusal = None
    await stage.placeholders.check()
    assert not stage.writer.created
    await stage.check(2)
    assert stage.writer.created == ["uid-p"]


async def test_a_placeholder_is_never_bound():
    stage = Stage()
    stage.bench.add(made("uid-p"))
    with pytest.raises(NoRoom, match="never bound"):
        await stage.bench.bind(made("uid-p"))
    assert not stage.bench.kube.bindings


async def test_it_is_deleted_as_soon_as_kube_scheduler_is_offered_a_node():
    """That does not wait for the search for other missing nodes."""
    stage = Stage()
    stage.needy()
    await stage.check()
    await stage.placeholders.drop()
    assert not stage.writer.deleted
    stage.bench.cluster.pods.answer("uid-p", 1, [], stage.bench.time.monotonic())
    await stage.placeholders.drop()
    assert stage.writer.deleted == ["uid-p"]
