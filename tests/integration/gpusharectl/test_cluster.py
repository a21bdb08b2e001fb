"""Commands against an API server: which versions run there, and what is said if none answers."""

import asyncio

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port
from click.testing import CliRunner

from gpusharectl.app import cli
from tests.integration.gpusharectl.test_reach import Cluster
from tests.integration.kube.apiserver import write_kubeconfig

pytestmark = pytest.mark.integration

SYSTEM = "/api/v1/namespaces/gpushare-system/pods"
ASKING = [
    ["inspect"],
    ["explain", "pod", "a"],
    ["gangs"],
    ["queue"],
    ["quota"],
    ["top"],
    ["page"],
    ["doctor"],
    ["cordon-gpu", "n1", "0"],
    ["defragment", "--free-gpus", "1"],
    ["migrate"],
    ["uninstall", "--dry-run"],
]


async def run(*words, env=None):
    return await asyncio.to_thread(CliRunner().invoke, cli, words, env=env)


def pod(name, program, node):
    labels = {"app.kubernetes.io/name": program}
    meta = {"name": name, "namespace": "gpushare-system", "labels": labels}
    return {"metadata": meta, "spec": {"nodeName": node}}


def cluster(*, plugin_status=200):
    made = Cluster(
        pod("e", "gpushare-extender", "cp"),
        *(pod(f"p{n}", "gpushare-deviceplugin", f"n{n}") for n in range(5)),
        pod("waiting", "gpushare-deviceplugin", ""),
    )
    made.answers["e"] = '{"version": "0.2.0"}'

    async def page(request):
        version = "0.1.9" if request.match_info["name"] == "p4" else "0.2.0"
        return web.json_response({"version": version}, status=plugin_status)

    made.app.router.add_get(f"{SYSTEM}/{{name}}/proxy/version", page)
    return made


async def test_version_shows_the_version_of_each_program(tmp_path):
    async with TestServer(cluster().app) as server:
        path = write_kubeconfig(tmp_path, str(server.make_url("")))
        shown = await run("version", "--kubeconfig", path)
        found = await run("--kubeconfig", path, "version", "-o", "json")
    assert (shown.exit_code, shown.output.splitlines()[1:]) == (
        0,
        ["extenders: 0.2.0 on cp", "device plugins: 0.1.9 on n4, 0.2.0 on 4 nodes"],
    )
    document = msgspec.json.decode(found.output)
    assert document["extenders"] == [{"name": "e", "node": "cp", "version": "0.2.0"}]
    assert [each["name"] for each in document["plugins"]] == ["p0", "p1", "p2", "p3", "p4"]


async def test_version_shows_what_it_may_and_names_the_missing_right_once(tmp_path):
    async with TestServer(cluster(plugin_status=403).app) as server:
        path = write_kubeconfig(tmp_path, str(server.make_url("")))
        shown = await run("version", "--kubeconfig", path)
    assert (shown.exit_code, shown.output.splitlines()[1:]) == (
        3,
        [
            "extenders: 0.2.0 on cp",
            "device plugins: none",
            (
                "not shown: you lack the right to get pods/proxy in namespace gpushare-system "
                "(kubectl auth can-i get pods/proxy -n gpushare-system)"
            ),
        ],
    )


async def test_the_extender_may_be_named_by_a_variable(tmp_path):
    async def page(_):
        return web.json_response({"version": "0.3.0"})

    app = web.Application()
    app.router.add_get("/{path:.*}", page)
    async with TestServer(app) as reading, TestServer(cluster().app) as server:
        path = write_kubeconfig(tmp_path, str(server.make_url("")))
        url = f"http://127.0.0.1:{reading.port}"
        shown = await run("--kubeconfig", path, "version", env={"GPUSHARE_SERVER": url})
    assert f"extenders: 0.3.0 on {url}" in shown.output


@pytest.mark.parametrize("words", ASKING, ids=lambda words: words[0])
async def test_a_command_without_a_cluster_names_server_context_and_file(tmp_path, words):
    server = f"https://127.0.0.1:{unused_port()}"
    path = write_kubeconfig(tmp_path, server)
    found = await run("--kubeconfig", path, *words)
    assert found.exit_code == 3
    assert found.stderr == (
        f"Error: cannot reach {server} (context x in {path}): connection refused; check the "
        "address, and that the server runs\n"
    )


async def test_namespaces_are_completed(tmp_path):
    async def namespaces(_):
        items = [{"metadata": {"name": name}} for name in ("ml", "monitoring", "web")]
        return web.json_response({"items": items, "metadata": {}})

    app = web.Application()
    app.router.add_get("/api/v1/namespaces", namespaces)
    async with TestServer(app) as server:
        path = write_kubeconfig(tmp_path, str(server.make_url("")))
        for line in ("inspect -n m", "-n m", "what-if --namespace m"):
            words = f"gpushare --kubeconfig {path} {line}"
            asked = {"_GPUSHARE_COMPLETE": "bash_complete", "COMP_WORDS": words}
            asked["COMP_CWORD"] = str(len(words.split()) - 1)
            found = await asyncio.to_thread(
                CliRunner().invoke, cli, env=asked, complete_var="_GPUSHARE_COMPLETE"
            )
            assert found.output.split() == ["plain,ml", "plain,monitoring"], line
