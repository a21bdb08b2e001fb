"""The leader creates placeholders that are missing and deletes those that are not needed."""

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.autoscaling.placeholders import Placeholders
from extender.binding.binder import Binder
from extender.decisions.autoscaling.missing_nodes import AFTER_SECONDS, EXAMINED, KEPT_SECONDS
from gpushare.contract import GATE_ADMISSION, LABEL_PLACEHOLDER
from gpushare.errors import ApiError, NoRoom
from gpushare.objects.model import Pod
from gpushare.objects.scheduling import LABEL_HOSTNAME, SchedulingGate
from gpushare.process.time_slices import Turns
from gpushare.quota.namespaces import Namespace
from gpushare.quota.quota import Quota
from tests.builders import node, pod
from tests.unit.extender.scripted import Bench, args, bound, changed

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
        if self.refusal is not None:
            raise self.refusal
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
            is_on=is_on,
        )
        self.binder = Binder(
            self.bench.cluster.scheduling,
            self.bench.kube,
            self.bench.time,
            before_write=self.placeholders.let_go,
        )

    def needy(self, *names: str, **how: Any) -> None:
        """Let kube-scheduler ask about pods, and time pass."""
        for name in names or ("p",):
            made = pod(name, 8)
            meta = {"namespace": how.get("namespace", "default")}
            spec = {key: value for key, value in how.items() if key != "namespace"}
            self.bench.add(changed(made, meta, spec=spec))
            self.bench.cluster.pods.answer(made.uid, 1, ["no room"], self.bench.time.monotonic())
        self.bench.time.now += AFTER_SECONDS

    async def check(self, times: int = 1, seconds: float = 60) -> None:
        for _ in range(times):
            await self.placeholders.check()
            self.bench.time.now += seconds


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


async def test_it_is_deleted_before_its_pod_is_bound():
    """Otherwise autoscalers that look between the two add a node for the placeholder alone."""
    stage = Stage()
    stage.needy()
    await stage.check()
    bench, deleted = stage.bench, stage.writer.deleted
    bench.cluster.pod_deleted(bench.kube.pods["a"])
    bench.kube.hold = asyncio.Event()
    binding = asyncio.create_task(stage.binder.bind(args(bench.kube.pods["p"])))
    await bench.kube.asked.wait()
    assert deleted == ["uid-p"]
    bench.kube.hold.set()
    await binding


async def test_a_pod_is_bound_although_its_placeholder_cannot_be_deleted():
    stage = Stage()
    stage.needy()
    await stage.check()
    stage.bench.cluster.pod_deleted(stage.bench.kube.pods["a"])
    stage.writer.refusal = ApiError("403", code=403)
    await stage.binder.bind(args(stage.bench.kube.pods["p"]))
    assert stage.bench.kube.pods["p"].node == "n"
    assert not stage.writer.deleted


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


async def test_none_is_created_for_a_pod_that_no_scheduler_has_asked_about():
    stage = Stage()
    stage.bench.add(changed(pod("p", 8), spec={"scheduler_name": "another"}))
    stage.bench.time.now += AFTER_SECONDS
    await stage.check(3)
    assert stage.writer.created == []


async def test_one_that_brings_no_node_gives_way_to_that_of_another_pod_after_a_while():
    """The sum of the node is enough for one of the pods, and nobody knows which autoscalers see."""
    stage = Stage()
    stage.needy("first", namespace="a")
    stage.needy("second", namespace="b")
    await stage.check(3)
    assert stage.writer.created == ["uid-first"]
    stage.bench.time.now += KEPT_SECONDS
    await stage.check(2)
    assert stage.writer.created == ["uid-first", "uid-second"]
    assert stage.writer.deleted == ["uid-first"]


class Hopeless(NamedTuple):
    """Pods that get no node: by their selectors, or because none comes for the placeholder."""

    selector: dict[str, str]
    count: int
    namespace: str
    priority: int


HOPELESS = st.builds(
    Hopeless,
    selector=st.sampled_from([{"no": "such"}, {LABEL_HOSTNAME: "n"}]),
    count=st.sampled_from([1, 3, EXAMINED + 1]),
    namespace=st.sampled_from(["default", "a", "b"]),
    priority=st.integers(-1, 1),
) | st.builds(
    Hopeless,
    selector=st.just({}),
    count=st.integers(1, 3),
    namespace=st.sampled_from(["default", "a", "b"]),
    priority=st.integers(-1, 1),
)


@settings(max_examples=25)
@given(groups=st.lists(HOPELESS, max_size=3))
async def test_whoever_needs_a_node_gets_a_placeholder_whatever_hopeless_pods_wait(
    groups: list[Hopeless],
):
    stage = Stage()
    stage.bench.cluster.node_changed(changed(node("n", 16, 16), {"labels": {LABEL_HOSTNAME: "n"}}))
    for number, each in enumerate(groups):
        names = (f"p{number}-{index}" for index in range(each.count))
        where = {"namespace": each.namespace, "node_selector": each.selector}
        stage.needy(*names, priority=each.priority, **where)
    stage.needy("mine")
    examined_after = 1 + sum(each.count for each in groups) // EXAMINED
    before_mine = sum(each.count for each in groups if not each.selector)
    for _ in range((1 + before_mine) * (1 + examined_after)):
        await stage.check(seconds=KEPT_SECONDS)
        if "uid-mine" in stage.writer.created:
            return
    pytest.fail("it got none")


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
