"""``gpushare uninstall`` in a cluster where the older gpushare still has a node."""

import asyncio

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner

from gpusharectl.app import cli
from tests.builders import legacy_node, node, pod
from tests.integration.kube.apiserver import kubeconfig

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("held", [True, False])
async def test_half_migrated_it_names_the_nodes_and_changes_nothing(tmp_path, held):
    lists = {
        "/api/v1/nodes": [node("ours", 8), legacy_node("older", 8, 1)],
        "/api/v1/pods": [pod("runs", 4, node="older", phase="Running")] if held else [],
    }
    written = []

    async def answer(request: web.Request) -> web.Response:
        if request.method != "GET":
            written.append(request.path)
        found = {"metadata": {}, "items": lists.get(request.path, [])}
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server:
        path = tmp_path / "kubeconfig"
        path.write_bytes(msgspec.json.encode(kubeconfig(str(server.make_url("")))))
        words = ["uninstall", "--drain", "--drain-seconds=0", "--yes", "--kubeconfig", str(path)]
        found = await asyncio.to_thread(CliRunner().invoke, cli, words)
    assert (found.exit_code, written) == (1, [])
    assert "1 node still with Aliyun gpushare: older. " in found.output
    assert "docs/migrate.md" in found.output
