"""What is listed with few rights, and how changes are noticed."""

import asyncio
from contextlib import aclosing

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner

from gpushare.kube.client import Kube
from gpusharectl.app import cli
from gpusharectl.inspect import follow
from gpusharectl.inspect.summary import Scope
from gpusharectl.reach.rights import Lacking
from tests.integration.kube.apiserver import kubeconfig

pytestmark = pytest.mark.integration


class ApiServer:
    """Has one node and one pod, and lets these be listed, and watched if ``watches``."""

    def __init__(self, *allowed, watches=False):
        self.allowed, self.watches = allowed, watches
        self.pods = ["a"]
        self.app = web.Application()
        self.app.router.add_get("/{path:.*}", self._answer)

    async def _answer(self, request):
        kind = "nodes" if request.path.endswith("/nodes") else "pods"
        where = "own" if "/namespaces/mine/" in request.path else kind
        is_watch = "watch" in request.query
        if where not in self.allowed or (is_watch and not self.watches):
            return web.json_response({"reason": "Forbidden"}, status=403)
        names = self.pods if kind == "pods" else ["n1"]
        items = [
            {"metadata": {"name": name, "uid": name, "resourceVersion": "2"}} for name in names
        ]
        if not is_watch:
            return web.json_response({"items": items, "metadata": {"resourceVersion": "1"}})
        response = web.StreamResponse()
        await response.prepare(request)
        if kind == "pods":
            added = {"metadata": {"name": "b", "uid": "b", "resourceVersion": "3"}}
            await response.write(msgspec.json.encode({"type": "ADDED", "object": added}) + b"\n")
        await request.content.read()
        return response


def configured(server, tmp_path):
    path = tmp_path / "kubeconfig"
    whole = kubeconfig(str(server.make_url("")))
    whole["contexts"][0]["context"]["namespace"] = "mine"
    path.write_bytes(msgspec.json.encode(whole))
    return str(path)


async def listed(api, tmp_path, *names, namespace=""):
    """The first view of the cluster that has pods of all these names."""
    scope, changes = Scope(namespace=namespace), follow.changes
    async with TestServer(api.app) as server:
        path = configured(server, tmp_path)
        async with Kube.connect(path) as kube, aclosing(changes(kube, scope)) as them:
            async for each in them:
                if {pod.metadata.name for pod in each.pods or ()}.issuperset(names):
                    return each
                api.pods = ["a", "c"]
    raise AssertionError


@pytest.mark.parametrize(
    ("allowed", "seen", "says"),
    [
        (("nodes", "pods"), (1, 1, True), ""),
        (("nodes", "own"), (1, 1, False), "pods outside namespace mine and sums are not shown"),
        (("nodes",), (1, 0, False), "pods and sums are not shown: you lack the right to list pods"),
        (("pods",), (0, 1, False), "kubectl auth can-i list nodes"),
        (("own",), (0, 1, False), ""),
    ],
)
async def test_what_may_be_listed_is_and_the_rest_is_named(tmp_path, allowed, seen, says):
    found = await listed(ApiServer(*allowed), tmp_path)
    assert (len(found.nodes or ()), len(found.pods or ()), found.complete) == seen
    assert (found.nodes is None) == ("nodes" not in allowed)
    assert says in "; ".join(found.missing)


async def test_a_namespace_that_is_named_is_listed_where_all_may_not_be(tmp_path):
    found = await listed(ApiServer("nodes", "own"), tmp_path, namespace="mine")
    assert (found.pods_of, len(found.pods)) == ("mine", 1)
    assert "pods of other namespaces are not shown" in found.missing[0]
    found = await listed(ApiServer("nodes", "own"), tmp_path, namespace="theirs")
    assert found.pods is None
    assert "you lack the right to list pods in namespace theirs" in found.missing[0]


async def test_where_nothing_may_be_listed_the_right_is_an_error(tmp_path):
    with pytest.raises(Lacking, match="list nodes"):
        await listed(ApiServer(), tmp_path)


@pytest.mark.parametrize(
    ("allowed", "says", "code"),
    [
        (("own",), "you lack the right to list nodes (kubectl auth can-i list nodes)", 3),
        (("nodes", "pods"), "node n1 does not exist, or does not share GPUs by memory", 1),
    ],
)
async def test_a_node_is_said_to_be_missing_only_if_nodes_are_known(tmp_path, allowed, says, code):
    async with TestServer(ApiServer(*allowed).app) as server:
        words = ["inspect", "n1", "--kubeconfig", configured(server, tmp_path)]
        shown = await asyncio.to_thread(CliRunner().invoke, cli, words)
    assert (says in shown.output, "does not exist" in shown.output) == (True, code == 1)
    assert shown.exit_code == code


async def test_a_change_is_seen_at_once_where_one_may_watch(tmp_path, monkeypatch):
    monkeypatch.setattr(follow, "TOGETHER_SECONDS", 0.01)
    assert await listed(ApiServer("nodes", "pods", watches=True), tmp_path, "a", "b")


async def test_where_one_may_not_watch_it_is_listed_again(tmp_path, monkeypatch):
    monkeypatch.setattr(follow, "POLL_SECONDS", 0.01)
    assert await listed(ApiServer("nodes", "pods"), tmp_path, "a", "c")
