"""gpushare defragment against an API server: what it changes, and what it leaves behind."""

import asyncio
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner, Result

from gpushare.defragment.movable import Rules, movables_of
from gpushare.kube.client import Kube
from gpushare.objects.model import Node, Pod
from gpushare.process.time_slices import run_all
from gpusharectl.app import cli
from gpusharectl.defragment import cordons, moving
from gpusharectl.defragment.moving import Moving
from gpusharectl.defragment.rules import Goal, plan_of
from gpusharectl.reach.listed_cluster import ListedCluster
from tests.builders import node
from tests.integration.kube.apiserver import write_kubeconfig

pytestmark = pytest.mark.integration

CORDONED = "gpushare.aliyun.com/cordoned-cards"
UNITS = 3


def running(name: str, on: str, card: int, *, label: str = "true") -> dict[str, Any]:
    """Describe a pod of a ReplicaSet that runs on a card."""
    ends = {"IDX": str(card), "POD": str(UNITS), "DEV": "8", "ASSUME_TIME": "1", "ASSIGNED": "true"}
    notes = {f"ALIYUN_COM_GPU_MEM_{end}": value for end, value in ends.items()}
    notes["gpushare.aliyun.com/cards"] = f"GPU-{card}"
    owner = {"controller": True, "kind": "ReplicaSet", "name": "set", "uid": f"set-{name[0]}"}
    limits = {"limits": {"aliyun.com/gpu-mem": str(UNITS)}}
    state = {"name": "main", "containerID": "x", "state": {"running": {}}}
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": name,
            "labels": {"gpushare.aliyun.com/movable": label},
            "annotations": notes,
            "ownerReferences": [owner],
        },
        "spec": {"nodeName": on, "containers": [{"name": "main", "resources": limits}]},
        "status": {"phase": "Running", "containerStatuses": [state]},
    }


class ApiServer:
    """A node with two cards of 8 units, and a pod on each.

    ``next`` is the pod that a controller creates for one that is evicted. ``evict_status`` and
    ``patch_status`` are the answers to further requests of their kind.
    """

    def __init__(self) -> None:
        self.node: Any = msgspec.to_builtins(node("n1", 8, 8))
        self.node["metadata"]["resourceVersion"] = "1"
        self.pods = {"a": running("a", "n1", 0), "b": running("b", "n1", 1)}
        self.next: dict[str, Any] | None = running("a2", "n1", 1)
        self.evict_status = [201, 201]
        self.patch_status = [200, 200]
        self.evicted: list[str] = []
        self.seen: list[str] = []  # cordoned cards at each eviction
        self.app = web.Application()
        self.app.router.add_get("/api/v1/nodes", self._nodes)
        self.app.router.add_get("/api/v1/nodes/n1", self._node)
        self.app.router.add_patch("/api/v1/nodes/n1", self._patch)
        for path in ("/api/v1/pods", "/api/v1/namespaces/default/pods"):
            self.app.router.add_get(path, self._pods)
        evictions = "/api/v1/namespaces/default/pods/{name}/eviction"
        self.app.router.add_post(evictions, self._evict)
        budgets = "/apis/policy/v1/poddisruptionbudgets"
        self.app.router.add_get(budgets, self._budgets)

    @property
    def cordoned(self) -> str:
        found: str = self.node["metadata"]["annotations"].get(CORDONED, "")
        return found

    def cluster(self) -> ListedCluster:
        nodes = [msgspec.convert(self.node, Node)]
        return ListedCluster(nodes, [msgspec.convert(each, Pod) for each in self.pods.values()])

    async def _nodes(self, _: web.Request) -> web.Response:
        return web.json_response({"items": [self.node], "metadata": {}})

    async def _node(self, _: web.Request) -> web.Response:
        return web.json_response(self.node)

    async def _pods(self, _: web.Request) -> web.Response:
        return web.json_response({"items": list(self.pods.values()), "metadata": {}})

    async def _budgets(self, _: web.Request) -> web.Response:
        return web.json_response({"items": [], "metadata": {}})

    async def _patch(self, request: web.Request) -> web.Response:
        status = self.patch_status.pop(0)
        if status == 200:
            annotations = self.node["metadata"]["annotations"]
            annotations |= (await request.json())["metadata"]["annotations"]
            for key in [key for key, value in annotations.items() if value is None]:
                del annotations[key]
        return web.json_response(self.node if status == 200 else {"message": "no"}, status=status)

    async def _evict(self, request: web.Request) -> web.Response:
        status, name = self.evict_status.pop(0), request.match_info["name"]
        body = await request.json()
        assert body["deleteOptions"]["preconditions"] == {"uid": name}
        if status == 201 and "dryRun" not in request.query:
            self.evicted.append(name)
            self.seen.append(self.cordoned)
            del self.pods[name]
            if self.next is not None:
                self.pods[self.next["metadata"]["name"]] = self.next
        return web.json_response({"message": "the budget forbids it"}, status=status)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cordons, "SEEN_SECONDS", 0.0)
    monkeypatch.setattr(moving, "RUNS_SECONDS", 0.0)
    monkeypatch.setattr(moving, "BUDGET_SECONDS", 0.0)


async def run(server: ApiServer, tmp_path: Any, *words: str) -> Result:
    async with TestServer(server.app) as listening:
        path = write_kubeconfig(tmp_path, str(listening.make_url("")))
        all_words = ["--kubeconfig", path, "defragment", *words]
        return await asyncio.to_thread(CliRunner().invoke, cli, all_words)


async def test_without_yes_nothing_is_changed(tmp_path):
    server = ApiServer()
    for words in ([], ["--dry-run"]):
        found = await run(server, tmp_path, "--free-gpus", "1", *words)
        assert found.exit_code == 0
        assert "1. default/a  3 MiB  n1, GPU 0 -> n1, GPU 1" in found.output
    assert not server.evicted
    assert len(server.patch_status) == 2


async def test_gpus_are_closed_while_a_pod_moves_and_open_afterwards(tmp_path):
    server = ApiServer()
    found = await run(server, tmp_path, "--free-gpus", "1", "--yes")
    assert found.exit_code == 0, found.output
    assert "1 of 1: default/a2 runs on n1, GPU 1" in found.output
    assert (server.evicted, server.seen, server.cordoned) == (["a"], ["GPU-0"], "")


async def test_cordons_of_others_stay(tmp_path):
    server = ApiServer()
    node_ = msgspec.to_builtins(node("n1", 8, 8, 8))
    node_["metadata"]["annotations"][CORDONED] = "GPU-2"
    server.node = node_
    found = await run(server, tmp_path, "--free-gpus", "1", "--yes")
    assert found.exit_code == 0, found.output
    assert (server.seen, server.cordoned) == (["GPU-0,GPU-2"], "GPU-2")


async def test_it_stops_if_the_next_pod_gets_a_gpu_that_was_to_become_free(tmp_path):
    server = ApiServer()
    server.next = running("a2", "n1", 0)
    found = await run(server, tmp_path, "--free-gpus", "1", "--yes")
    assert found.exit_code == 1
    assert "stopped after 1 of 1 move, because room is used that the plan needs" in found.output
    assert server.cordoned == ""


async def test_it_stops_if_the_next_pod_gets_a_gpu_that_was_free(tmp_path):
    server = ApiServer()
    server.node = msgspec.to_builtins(node("n1", 8, 8, 8))
    server.next = running("a2", "n1", 2)
    found = await run(server, tmp_path, "--free-gpus", "1", "--yes")
    assert found.exit_code == 1
    assert "default/a2 uses a GPU that was free" in found.output


async def test_it_stops_if_no_pod_replaces_the_one_that_was_evicted(tmp_path):
    server = ApiServer()
    server.next = None
    found = await run(server, tmp_path, "--free-gpus", "1", "--yes")
    assert found.exit_code == 1
    assert "stopped after 0 moves" in found.output
    assert "no pod runs instead of default/a" in found.output
    assert server.cordoned == ""


async def test_an_eviction_that_is_refused_in_a_trial_changes_nothing(tmp_path):
    server = ApiServer()
    server.evict_status = [429]
    found = await run(server, tmp_path, "--free-gpus", "1", "--yes")
    assert found.exit_code == 1
    assert "nothing was changed: default/a cannot be evicted" in found.output
    assert len(server.patch_status) == 2


async def test_a_budget_that_refuses_for_too_long_stops_it(tmp_path):
    server = ApiServer()
    server.evict_status = [201, 429]
    found = await run(server, tmp_path, "--free-gpus", "1", "--yes")
    assert found.exit_code == 1
    assert "stopped after 0 moves: default/a cannot be evicted" in found.output
    assert (server.evicted, server.cordoned) == ([], "")


async def test_a_gpu_that_cannot_be_uncordoned_is_named(tmp_path):
    server = ApiServer()
    server.patch_status = [200, 422]
    found = await run(server, tmp_path, "--free-gpus", "1", "--yes")
    assert found.exit_code == 1
    assert "run `gpushare uncordon-gpu n1 GPU-0`" in found.output


async def test_ctrl_c_uncordons_what_was_cordoned(tmp_path, monkeypatch):
    monkeypatch.setattr(moving, "RUNS_SECONDS", 600.0)
    server = ApiServer()
    server.next = None
    world = server.cluster()
    movables = run_all(movables_of(world, Rules()))
    plan = run_all(plan_of(world, Goal("1 GPU", 1), movables))
    async with TestServer(server.app) as listening:
        path = write_kubeconfig(tmp_path, str(listening.make_url("")))
        async with Kube.connect(path) as kube:
            is_evicted = asyncio.Event()
            task = asyncio.create_task(Moving(kube, plan, lambda _: is_evicted.set()).run())
            await is_evicted.wait()
            assert server.cordoned == "GPU-0"
            task.cancel()  # as asyncio.run does at SIGINT
            with pytest.raises(asyncio.CancelledError):
                await task
    assert server.cordoned == ""


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "use either --for or --free-gpus"),
        (["--for", "a", "--free-gpus", "1"], "use either --for or --free-gpus"),
        (["--free-gpus", "1", "--yes", "--dry-run"], "--yes: not with --dry-run"),
        (["--free-gpus", "1", "--yes", "-o", "json"], "--yes: only with -o text"),
        (["--free-gpus", "0"], "--free-gpus"),
        (["--for", "a/b/c"], "write NAME or NAMESPACE/NAME"),
    ],
)
async def test_what_cannot_be_meant_is_refused(tmp_path, words, text):
    found = await run(ApiServer(), tmp_path, *words)
    assert found.exit_code == 2
    assert text in found.output
