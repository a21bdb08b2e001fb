"""Commands that are asked about a pod with a wrong request tell the right one."""

import asyncio

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner

from gpusharectl.app import cli
from tests.integration.kube.apiserver import write_kubeconfig

pytestmark = pytest.mark.integration

TOLD = "aliyun.com/gpu-memory: did you mean aliyun.com/gpu-mem?"
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "a", "namespace": "default", "uid": "u"},
    "spec": {
        "containers": [{"name": "main", "resources": {"limits": {"aliyun.com/gpu-memory": "8"}}}]
    },
}


async def test_a_kubeconfig_that_contains_itself_is_a_usage_error(tmp_path):
    path = tmp_path / "kubeconfig"
    path.write_text(
        "clusters:\n- name: c\n  cluster: {extensions: &a [{name: e, extension: *a}]}\n"
    )
    found = await asyncio.to_thread(CliRunner().invoke, cli, ["--kubeconfig", str(path), "inspect"])
    assert found.exit_code == 2
    assert found.stderr == f"Error: {path} is not valid YAML: line 3: an alias contains itself\n"


async def run(tmp_path, *words):
    async def answer(request):
        is_pod = request.path.endswith("/pods/a")
        return web.json_response(POD if is_pod else {"items": [], "metadata": {}})

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with TestServer(app) as server:
        path = write_kubeconfig(tmp_path, str(server.make_url("")))
        return await asyncio.to_thread(CliRunner().invoke, cli, ["--kubeconfig", path, *words])


async def test_explain_tells_what_a_mistyped_resource_was_meant_to_be(tmp_path):
    found = await run(tmp_path, "explain", "pod", "a", "-n", "default")
    assert found.exit_code == 1
    assert TOLD in found.output


async def test_what_if_tells_first_what_a_mistyped_resource_was_meant_to_be(tmp_path):
    file = tmp_path / "pod.json"
    file.write_bytes(msgspec.json.encode(POD))
    found = await run(tmp_path, "what-if", "-f", str(file))
    assert found.exit_code == 1
    assert found.output.startswith(TOLD)


async def test_what_if_refuses_what_kubernetes_refuses(tmp_path):
    file = tmp_path / "pod.yaml"
    file.write_text(
        "kind: Pod\nmetadata: {name: a}\n"
        "spec: {containers: [{name: main, resources: {requests: {aliyun.com/gpu-mem: 8}}}]}\n"
    )
    found = await run(tmp_path, "what-if", "-f", str(file))
    assert found.exit_code == 2
    assert (
        "Pod a: spec.containers[0].resources.requests.aliyun.com/gpu-mem: container main: "
        "Kubernetes refuses 8: Limit must be set" in found.output
    )
