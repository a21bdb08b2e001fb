"""Reports on running pods are correct, and are retried until they are written."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.cards.survey import Terms
from deviceplugin.cdi.spec_files import Given, Specs, device_name
from deviceplugin.kubelet.checkpoint import CheckpointFile
from deviceplugin.kubelet.watched_pods import NodePods
from deviceplugin.report.running_on import PodReport
from gpushare.clock import SystemClock
from gpushare.contract import ANNOTATION_ASSIGNED, ANNOTATION_RUNNING_ON
from gpushare.errors import ApiError, Conflict, NotFound, OutcomeUnknown
from gpushare.objects.model import ContainerState, ContainerStatus, Pod, PodStatus, Terminated
from localcluster.wait import patient
from protos.deviceplugin.v1beta1 import api_pb2
from tests.fakes.driver import card
from tests.fakes.kubelet import checkpoint
from tests.fakes.pods import RUNNING, pod
from tests.waiting import running

UUID = card(0).uuid


class Api:
    """``written`` are the patches that landed; ``tried`` counts all."""

    def __init__(self) -> None:
        self.written: list[tuple[str, dict[str, str]]] = []
        self.fails: dict[str, ApiError] = {}
        self.tried = 0
        self.stirred = asyncio.Condition()

    async def annotate_pod(self, namespace, name, uid, annotations) -> None:
        self.tried += 1
        async with self.stirred:
            self.stirred.notify_all()
        if name in self.fails:
            raise self.fails[name]
        self.written.append((name, annotations))

    async def until(self, condition) -> None:
        async with asyncio.timeout(patient(5)), self.stirred:
            await self.stirred.wait_for(condition)


class Node:
    def __init__(self, folder: Path) -> None:
        self.checkpoint = folder / "checkpoint"
        self.api = Api()
        self.watch = NodePods()
        self.specs = Specs(folder)
        self.cards = NodeCards(Terms(1024), None)
        self.cards.seen([card(0)])
        self.reports = PodReport(
            kube=self.api,
            pods=self.watch,
            cards=self.cards,
            checkpoint=CheckpointFile(self.checkpoint),
            specs=self.specs,
            clock=SystemClock(),
        )

    def holds(self, owner, **answer) -> None:
        """The kubelet's checkpoint says that the pod's container was answered so."""
        response = api_pb2.ContainerAllocateResponse(**answer).SerializeToString()
        self.checkpoint.write_text(checkpoint({(owner.uid, "app-0"): (["a0000"], response)}))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_one_rejected_patch_does_not_delay_the_others(node: Node) -> None:
    bad, good = pod("bad", cards=(UUID,), started=True), pod("good", cards=(UUID,), started=True)
    node.api.fails["bad"] = Conflict("another uid", code=409)
    node.watch.replaced([bad, good])
    for each in (bad, good):
        node.reports.started(each.uid, [UUID])
    async with running(node.reports.run()):
        await node.api.until(lambda: node.api.tried >= 4)
    assert [name for name, _ in node.api.written] == ["good"]


@pytest.mark.parametrize(
    "error",
    [
        Conflict("changed meanwhile", code=409),
        ApiError("forbidden", code=403),
        ApiError("the server is busy", code=429),
        OutcomeUnknown("internal", code=500),
        OutcomeUnknown("no answer"),
    ],
    ids=lambda error: str(error.code),
)
async def test_a_rejected_report_is_retried(node: Node, error) -> None:
    owner = pod("a", cards=(UUID,), started=True)
    node.watch.replaced([owner])
    node.reports.started(owner.uid, [UUID])
    node.api.fails["a"] = error
    async with running(node.reports.run()):
        await node.api.until(lambda: node.api.tried == 2)
        del node.api.fails["a"]
        await node.api.until(lambda: node.api.tried == 3)
    assert [name for name, _ in node.api.written] == ["a"]


async def test_invalid_pods_do_not_delay_others(node: Node, caplog) -> None:
    """They may run since Aliyun gpushare's plugin, which ignored the label."""
    label = {"aliyun.com/gpu-count": "x"}
    bad = [pod(f"bad-{n}", cards=(UUID,), labels=label, started=True) for n in range(20)]
    good = pod("good", cards=(UUID,), started=True)
    node.watch.replaced([*bad, good])
    for each in node.watch:
        node.reports.started(each.uid, [UUID])
    async with running(node.reports.run()):
        await node.api.until(lambda: node.api.written)
        last = pod("last", cards=(UUID,), started=True)
        node.watch.changed(last)
        node.reports.started(last.uid, [UUID])
        await node.api.until(lambda: len(node.api.written) == 2)
    assert [name for name, _ in node.api.written] == ["good", "last"]
    assert caplog.text.count("request is invalid") == len(bad), "once for each"


async def test_a_deleted_pod_is_not_retried(node: Node) -> None:
    gone = pod("gone", cards=(UUID,), started=True)
    last = pod("last", cards=(UUID,), started=True)
    node.api.fails["gone"] = NotFound("gone", code=404)
    node.watch.replaced([gone])
    node.reports.started(gone.uid, [UUID])
    async with running(node.reports.run()):
        await node.api.until(lambda: node.api.tried == 1)
        node.watch.deleted(gone)
        node.watch.changed(last)
        node.reports.started(last.uid, [UUID])
        await node.api.until(lambda: node.api.written or node.api.tried > 2)
        assert node.api.tried == 2


async def test_a_start_that_the_watch_shows_only_later_is_reported_then(node: Node) -> None:
    late = pod("late", cards=(UUID,), started=True)
    node.holds(late, envs={"NVIDIA_VISIBLE_DEVICES": UUID})
    node.reports.started(late.uid, [UUID])
    async with running(node.reports.run()):
        node.watch.changed(pod("other"))
        await asyncio.sleep(0)
        node.watch.changed(late)
        await node.api.until(lambda: node.api.tried == 1)


async def test_what_was_written_is_not_written_again_before_the_watch_shows_it(node: Node) -> None:
    written = pod("written", cards=(UUID,), started=True)
    other = pod("other", cards=(UUID,), started=True)
    node.watch.replaced([written])
    node.reports.started(written.uid, [UUID])
    async with running(node.reports.run()):
        await node.api.until(lambda: node.api.tried == 1)
        node.watch.changed(other)
        node.reports.started(other.uid, [UUID])
        await node.api.until(lambda: node.api.tried == 2)
    assert [name for name, _ in node.api.written] == ["written", "other"]


def test_a_reported_pod_and_one_that_an_earlier_plugin_saw_end_are_left_alone(node: Node) -> None:
    done = {ANNOTATION_ASSIGNED: "true", ANNOTATION_RUNNING_ON: "{}"}
    reported = pod("reported", annotations=done, started=True)
    ended = with_status(pod("ended", cards=(UUID,)), "Succeeded", RAN)
    node.watch.replaced([ended, reported])
    node.reports.started(reported.uid, [UUID])
    node.holds(ended, envs={"NVIDIA_VISIBLE_DEVICES": UUID})
    assert list(node.reports._due()) == []


RAN = ContainerState(terminated=Terminated("2026-11-21T10:00:01Z"))
# As a real kubelet of 1.34 with containerd 2 shows a container that the runtime could not start.
NEVER_RAN = ContainerState(terminated=Terminated("1970-01-01T00:00:00Z"))


def with_status(owner: Pod, phase: str, *states: ContainerState | None) -> Pod:
    """The pod with a container ``app-0`` that is in the first state and was in the second."""
    state, last_state = (*states, None, None)[:2]
    told = (ContainerStatus("app-0", "containerd://0", state, last_state),)
    return msgspec.structs.replace(owner, status=PodStatus(phase, container_statuses=told))


def test_a_container_that_was_let_start_is_reported_once_it_has_run_and_not_before(
    node: Node,
) -> None:
    owner = pod("a", cards=(UUID,))
    node.reports.started(owner.uid, [UUID])
    for status in (
        owner,
        with_status(owner, "Pending"),
        with_status(owner, "Pending", None, NEVER_RAN),
        with_status(owner, "Running", NEVER_RAN),
        with_status(owner, "Failed", NEVER_RAN),
    ):
        node.watch.replaced([status])
        assert list(node.reports._due()) == []
    for status in (
        with_status(owner, "Running", RUNNING),
        with_status(owner, "Running", None, RAN),
        with_status(owner, "Running", NEVER_RAN, RAN),
        with_status(owner, "Succeeded", RAN),
    ):
        node.watch.replaced([status])
        assert list(node.reports._due()) == [(status, (UUID,))]


def test_a_container_without_a_share_reports_nothing(node: Node) -> None:
    owner = pod("a", [0, 8], cards=(UUID,))
    node.reports.started(owner.uid, [UUID])
    node.watch.replaced([with_status(owner, "Running", RUNNING)])
    assert list(node.reports._due()) == []


def test_an_init_container_that_has_ended_at_once_is_reported(node: Node) -> None:
    owner = pod("a", cards=(UUID,), init=[8])
    status = PodStatus("Pending", init_container_statuses=(ContainerStatus("init-0", "x", RAN),))
    owner = msgspec.structs.replace(owner, status=status)
    node.reports.started(owner.uid, [UUID])
    node.watch.replaced([owner])
    assert list(node.reports._due()) == [(owner, (UUID,))]


def test_after_a_restart_the_gpu_that_was_given_is_reported_not_the_one_decided(
    node: Node,
) -> None:
    running = pod("a", cards=(card(1).uuid,), started=True)
    node.watch.replaced([running])
    node.holds(running, envs={"NVIDIA_VISIBLE_DEVICES": UUID})
    assert list(node.reports._due()) == [(running, (UUID,))]


def test_after_a_restart_a_late_bound_container_is_read_from_its_file(node: Node) -> None:
    running = pod("a", cards=(UUID,), started=True)
    node.watch.replaced([running])
    node.holds(running, cdi_devices=[{"name": device_name("abc")}])
    assert list(node.reports._due()) == []
    node.specs.write("abc", Given("another-uid", {"NVIDIA_VISIBLE_DEVICES": UUID}))
    assert list(node.reports._due()) == []
    node.specs.write("abc", Given(running.uid, {"NVIDIA_VISIBLE_DEVICES": UUID}))
    assert list(node.reports._due()) == [(running, (UUID,))]


def test_an_invalid_cdi_file_reports_nothing_and_is_no_error(node: Node) -> None:
    running = pod("a", cards=(UUID,), started=True)
    node.watch.replaced([running])
    node.holds(running, cdi_devices=[{"name": device_name("abc")}])
    deep = '{"annotations":{},"devices":[],"other":' + "[" * 5000 + "]" * 5000 + "}"
    (node.checkpoint.parent / "gpushare-abc.json").write_text(deep)
    assert list(node.reports._due()) == []


async def test_the_older_plugins_minor_number_is_reported_once_its_gpu_is_known(
    node: Node,
) -> None:
    """A plugin that starts may know the pods before it knows the cards."""
    old = pod("old", cards=(UUID,), started=True)
    new = pod("new", cards=(UUID,), started=True)
    node.watch.replaced([old, new])
    node.holds(old, envs={"NVIDIA_VISIBLE_DEVICES": "1"})
    node.reports.started(new.uid, [UUID])
    async with running(node.reports.run()):
        await node.api.until(lambda: bool(node.api.written))
        assert [name for name, _ in node.api.written] == ["new"]
        node.cards.seen([card(0), card(1)])
        await node.api.until(lambda: len(node.api.written) > 1)
    name, annotations = node.api.written[-1]
    assert name == "old"
    assert card(1).uuid in annotations[ANNOTATION_RUNNING_ON]
