"""``gpushare uninstall --keep-namespace`` removes what is gpushare's, and nothing else."""

import asyncio
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner

from gpusharectl.app import cli
from tests.integration.kube.apiserver import write_kubeconfig

pytestmark = pytest.mark.integration

CORE = "/api/v1/namespaces/gpushare-system"
COREOS = "/apis/monitoring.coreos.com/v1/namespaces/gpushare-system"
CERT_MANAGER = "/apis/cert-manager.io/v1/namespaces/gpushare-system"
RELEASE = "meta.helm.sh/release-name"


class Cluster:
    """The API of a cluster: objects by path. ``kinds`` are the paths of those that are known."""

    def __init__(self) -> None:
        self.kinds = {"/api/v1/nodes", "/api/v1/pods", f"{CORE}/pods", f"{CORE}/secrets"}
        self.objects: dict[str, dict[str, Any]] = {}
        self.app = web.Application()
        self.app.router.add_get("/{path:.*}", self._get)
        self.app.router.add_delete("/{path:.*}", self._delete)
        self.app.router.add_patch("/{path:.*}", self._patch)
        self.denials = 0  # of patches, by a policy that is deleted already

    def add(
        self,
        path: str,
        labels: dict[str, str] | None = None,
        annotations: dict[str, str] | None = None,
    ) -> None:
        self.kinds.add(path.rpartition("/")[0])
        name = path.rpartition("/")[2]
        metadata = {"name": name, "labels": labels or {}, "annotations": annotations or {}}
        self.objects[path] = {"metadata": metadata}

    async def _get(self, request: web.Request) -> web.Response:
        if request.path not in self.kinds:
            return web.json_response({"reason": "NotFound"}, status=404)
        wanted = [
            each.split("=")
            for each in request.query.get("labelSelector", "").split(",")
            if "=" in each
        ]
        items = [
            each
            for path, each in self.objects.items()
            if path.rpartition("/")[0] == request.path
            and all(each["metadata"]["labels"].get(key) == value for key, value in wanted)
        ]
        return web.json_response({"items": items, "metadata": {}})

    async def _patch(self, request: web.Request) -> web.Response:
        """Release a pod: the policies must be gone by then, and every extender."""
        assert not any("gpushare-extender" in path or "polic" in path for path in self.objects)
        pod = self.objects["/api/v1/pods/" + request.path.rpartition("/")[2]]
        body = await request.json()
        assert body["metadata"]["uid"] == pod["metadata"]["uid"]
        if self.denials:
            self.denials -= 1
            text = "ValidatingAdmissionPolicy 'gpushare-gates' denied request"
            return web.json_response({"reason": "Invalid", "message": text}, status=422)
        gone = {each["name"] for each in body["spec"]["schedulingGates"]}
        pod["spec"]["schedulingGates"] = [
            each for each in pod["spec"]["schedulingGates"] if each["name"] not in gone
        ]
        return web.json_response({})

    async def _delete(self, request: web.Request) -> web.Response:
        found = self.objects.pop(request.path, None)
        return web.json_response({}, status=404 if found is None else 200)


async def uninstalled(cluster: Cluster, tmp_path: Any) -> str:
    async with TestServer(cluster.app) as server:
        path = write_kubeconfig(tmp_path, str(server.make_url("")))
        words = ["uninstall", "--keep-namespace", "--no-wait", "--yes", "--kubeconfig", path]
        done = await asyncio.to_thread(CliRunner().invoke, cli, words)
    assert done.exit_code == 0, done.output
    return done.output


def release(cluster: Cluster, name: str) -> str:
    path = f"{CORE}/secrets/sh.helm.release.v1.{name}.v1"
    cluster.add(path, labels={"owner": "helm", "name": name})
    return path


async def test_in_a_kept_namespace_only_gpushares_release_goes(tmp_path):
    cluster = Cluster()
    cluster.add(f"{CORE}/serviceaccounts/gpushare-extender", annotations={RELEASE: "sharing"})
    own, other = release(cluster, "sharing"), release(cluster, "prometheus")
    cluster.add(f"{CORE}/serviceaccounts/default", annotations={RELEASE: "prometheus"})
    said = await uninstalled(cluster, tmp_path)
    assert f"Secret {own.rpartition('/')[2]}" in said
    assert {path for path in cluster.objects if "secrets" in path} == {other}


async def test_without_helm_no_release_goes(tmp_path):
    cluster = Cluster()
    cluster.add(f"{CORE}/serviceaccounts/gpushare-extender")
    kept = release(cluster, "gpushare")
    await uninstalled(cluster, tmp_path)
    assert {*cluster.objects} == {kept}


async def test_objects_of_the_prometheus_operator_and_cert_manager_go(tmp_path):
    cluster = Cluster()
    mine = f"{COREOS}/podmonitors/mine"
    for path in (
        mine,
        f"{COREOS}/podmonitors/gpushare-extender",
        f"{COREOS}/prometheusrules/gpushare",
        f"{CERT_MANAGER}/issuers/gpushare-authority",
        f"{CERT_MANAGER}/certificates/gpushare-scheduler",
        f"{CORE}/secrets/gpushare-authority",
    ):
        cluster.add(path)
    said = await uninstalled(cluster, tmp_path)
    assert {*cluster.objects} == {mine}
    assert said.index("deleted: Certificate") < said.index("deleted: Secret")


async def test_gated_pods_are_released_once_no_policy_and_no_extender_is_left(tmp_path):
    cluster = Cluster()
    cluster.denials = 1
    admission = "/apis/admissionregistration.k8s.io"
    for path in (
        f"{admission}/v1beta1/mutatingadmissionpolicies/gpushare-gates",
        f"{admission}/v1/mutatingwebhookconfigurations/gpushare-gates",
        f"{admission}/v1/validatingadmissionpolicybindings/gpushare-gates",
        "/apis/apps/v1/namespaces/gpushare-system/daemonsets/gpushare-extender",
    ):
        cluster.add(path)
    gate, other = {"name": "gpushare.aliyun.com/admission"}, {"name": "example.com/quota"}
    for name, gates in (("a", [gate]), ("b", [other, gate]), ("c", [other])):
        path = f"/api/v1/pods/{name}"
        cluster.add(path)
        cluster.objects[path]["metadata"] |= {"namespace": "team", "uid": f"uid-{name}"}
        cluster.objects[path]["spec"] = {"schedulingGates": gates}
    said = await uninstalled(cluster, tmp_path)
    assert "the scheduling gate gpushare.aliyun.com/admission: team/a, team/b" in said
    left = {path: each["spec"]["schedulingGates"] for path, each in cluster.objects.items()}
    assert left == {
        "/api/v1/pods/a": [], "/api/v1/pods/b": [other], "/api/v1/pods/c": [other],
    }  # fmt: skip
