"""``gpushare gangs`` against an extender, and against an API server without one."""

import asyncio
from contextlib import AsyncExitStack

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner

from gpushare.answers.gangs import GangList
from gpusharectl.app import cli
from tests.builders import node
from tests.integration.gpusharectl.test_listing import configured
from tests.unit.gpusharectl.gangs.test_lines import gang

pytestmark = pytest.mark.integration

FIRST = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/mine/podgroups"


class ApiServer:
    """Lets the pods and PodGroups of one namespace be listed; ``pod_groups`` may be a status."""

    def __init__(self, *pods, pod_groups=404, nodes=403):
        self.pods, self.pod_groups, self.nodes = pods, pod_groups, nodes
        self.all_pods = False
        self.app = web.Application()
        self.app.router.add_get("/{path:.*}", self._answer)

    async def _answer(self, request):
        found = 403
        if request.path == "/api/v1/namespaces/mine/pods":
            found = list(self.pods)
        elif request.path.startswith("/api/v1/namespaces/mine/pods/"):
            name = request.path.rpartition("/")[2]
            return web.json_response(next(p for p in self.pods if p["metadata"]["name"] == name))
        elif request.path == "/api/v1/pods" and self.all_pods:
            found = list(self.pods)
        elif request.path.endswith("/podgroups"):
            found = self.pod_groups if request.path == FIRST else 404
        elif request.path == "/api/v1/nodes":
            found = self.nodes
        if isinstance(found, int):
            return web.json_response({"reason": "NotFound"}, status=found)
        return web.json_response({"items": found, "metadata": {}})


def pod(name, node="", units="20", **labels):
    amounts = {"limits": {"aliyun.com/gpu-mem": units}} if units else {}
    return {
        "metadata": {
            "name": name,
            "namespace": "mine",
            "uid": name,
            "labels": {each.replace("__", "/"): value for each, value in labels.items()},
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"nodeName": node, "containers": [{"name": "m", "resources": amounts}]},
        "status": {"phase": "Pending"},
    }


def labelled(name, minimum, **more):
    found = pod(name, **more)
    prefix = "pod-group.scheduling.sigs.k8s.io"
    found["metadata"]["labels"] = {f"{prefix}/name": "t", f"{prefix}/min-available": minimum}
    return found


def in_group(name, group):
    found = pod(name)
    found["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": group}
    return found


async def run(tmp_path, api, *words, extender=None, command=("gangs",)):
    env = {}
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(TestServer(api.app))
        if extender is not None:
            await stack.enter_async_context(extender)
            env["GPUSHARE_SERVER"] = str(extender.make_url(""))
        words = [*command, "--kubeconfig", configured(server, tmp_path), *words]
        return await asyncio.to_thread(CliRunner().invoke, cli, words, env=env)


@pytest.fixture
async def extender():
    """Has gangs, and records in ``asked`` what it is asked for."""
    app, found, asked = web.Application(), GangList([gang()]), []

    async def answer(request):
        asked.append(request.path.removeprefix("/gpushare-scheduler/"))
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

    app.router.add_get("/{path:.*}", answer)
    server = TestServer(app)
    server.asked = asked
    return server


@pytest.mark.parametrize(
    ("words", "page"), [((), "gangs/mine"), (("-n", "ml"), "gangs/ml"), (("-A",), "gangs")]
)
async def test_the_namespace_of_the_context_is_shown_unless_another_is_asked_for(
    tmp_path, extender, words, page
):
    found = await run(tmp_path, ApiServer(), *words, extender=extender)
    assert (found.exit_code, "Placed: 8 of 8." in found.output) == (0, True)
    assert extender.asked[-1] == page


async def test_programs_get_the_same_fields(tmp_path, extender):
    found = await run(tmp_path, ApiServer(), "-o", "json", extender=extender)
    document = msgspec.json.decode(found.output)
    assert document["gangs"][0]["phase"] == "Placed"
    assert (document["fromExtender"], document["complete"], document["notShown"]) == (
        True,
        True,
        [],
    )


async def test_without_an_extender_the_pods_of_the_namespace_show_its_gangs(tmp_path):
    found = await run(tmp_path, ApiServer(labelled("a", "2"), labelled("b", "2", node="n")))
    assert found.exit_code == 0
    lines = found.output.splitlines()
    assert lines[1].split()[:5] == ["t", "1", "2", "2", "WaitingForRoom"]
    assert "Waiting for a plan for 1 member in addition to its 1 bound member." in lines[1]
    assert lines[2].startswith("what only the extender knows is not shown (plans, zones): ")


async def test_without_an_extender_who_may_list_everything_sees_what_has_room(tmp_path):
    gpus = msgspec.to_builtins(node("n", 40, 40, unit_mib=1024))
    api = ApiServer(*(labelled(name, "3", units="30") for name in "abc"), nodes=[gpus])
    api.all_pods = True
    found = await run(tmp_path, api)
    assert "No room for 3 x 30 GiB together: 2 fit now." in found.output
    api.all_pods = False
    found = await run(tmp_path, api)
    assert "Waiting for a plan for 3 x 30 GiB." in found.output


async def test_without_an_extender_explain_says_the_sentence_of_the_gang_first(tmp_path):
    gpus = msgspec.to_builtins(node("n", 40, 40, unit_mib=1024))
    api = ApiServer(labelled("a", "2"), labelled("server", "2", units=""), nodes=[gpus])
    api.all_pods = True
    for name in ("a", "server"):
        found = await run(tmp_path, api, command=["explain", "pod", name])
        assert found.output.splitlines()[0] == (
            f"mine/{name} is Pending: it is a member of gang t. Waiting for a plan for 1 x 20 GiB "
            "and 1 pod without GPU memory."
        )


async def test_inspect_shows_a_gang_as_one_row_with_the_sentence_that_explain_computes(tmp_path):
    gpus = msgspec.to_builtins(node("n", 40, 40, unit_mib=1024))
    members = [labelled(f"w-{number}", "64", units="30") for number in range(64)]
    api = ApiServer(*members, labelled("server", "64", units=""), pod("alone", units="50"))
    api.all_pods, api.nodes = True, [gpus]
    found = await run(tmp_path, api, command=["inspect"])
    lines = found.output.splitlines()
    [head] = [number for number, line in enumerate(lines) if "Pending pod" in line]
    assert lines[head] == "65 Pending pods, 64 in 1 gang"
    assert lines[head + 1].split()[0] == "mine/alone"
    assert lines[head + 2].strip().startswith("Gang mine/t (64 pods)")
    assert "together: 2 fit now. It starts when" in lines[head + 2]
    assert "w-" not in found.output
    document = msgspec.json.decode(
        (await run(tmp_path, api, command=["inspect", "-o", "json"])).output
    )
    assert {each["gang"] for each in document["waiting"]} == {"", "t"}
    assert "2 fit now" in document["gangs"]["mine/t"]


async def test_without_an_extender_pod_groups_are_listed(tmp_path):
    groups = [
        {"metadata": {"name": "g", "namespace": "mine"}, "spec": {"minMember": 3}},
    ]
    found = await run(tmp_path, ApiServer(in_group("a", "g"), pod_groups=groups))
    assert "Waiting for 2 of 3 members; 1 exists. If no more" in found.output
    found = await run(tmp_path, ApiServer(in_group("a", "g"), pod_groups=404))
    assert "of a kind that the API server does not serve" in found.output


async def test_gangs_whose_pod_groups_may_not_be_listed_are_left_out_and_the_right_is_named(
    tmp_path,
):
    api = ApiServer(in_group("a", "g"), in_group("b", "g"), labelled("c", "1"), pod_groups=403)
    found = await run(tmp_path, api)
    assert found.exit_code == 3
    assert "1 gang with PodGroups left out: you lack the right to list" in found.output
    assert "podgroups.scheduling.x-k8s.io" in found.output
    assert "\nt " in found.output


async def test_an_extender_of_an_older_version_is_no_obstacle(tmp_path):
    async def unknown(_):
        return web.json_response({"Error": "Not Found"}, status=404)

    async def ready(_):
        return web.Response()

    app = web.Application()
    app.router.add_get("/readyz", ready)
    app.router.add_get("/{path:.*}", unknown)
    found = await run(tmp_path, ApiServer(labelled("a", "2")), extender=TestServer(app))
    assert found.exit_code == 0
    assert "Waiting for 1 of 2 members; 1 exists." in found.output
    assert "Not Found" in found.output


async def test_a_missing_right_to_list_pods_is_named(tmp_path):
    found = await run(tmp_path, ApiServer(), "-n", "theirs")
    assert found.exit_code == 3
    assert "you lack the right to list pods in namespace theirs" in found.output


async def test_inspect_says_the_sentence_of_the_gang_too(tmp_path, extender):
    gpus = msgspec.to_builtins(node("n", 40, 40, unit_mib=1024))
    waiting = labelled("a", "2")
    api = ApiServer(waiting, nodes=[gpus])
    api.all_pods = True
    found = await run(tmp_path, api, command=["inspect"])
    assert "Gang mine/t (1 pod)" in found.output
    assert "Waiting for 1 of 2 members; 1 exists." in found.output
    waiting["metadata"]["labels"]["pod-group.scheduling.sigs.k8s.io/name"] = "train"
    waiting["metadata"]["namespace"] = "ml"  # as the extender has it
    found = await run(tmp_path, api, command=["inspect"], extender=extender)
    assert "Gang ml/train (1 pod)" in found.output
    assert "Placed: 8 of 8." in found.output
