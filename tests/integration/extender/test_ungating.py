"""With gates off every gated pod is released, whatever the API server answers first."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from extender.gates.releaser import Releaser
from extender.gates.ungating import Ungating
from gpushare.clock import SystemClock
from gpushare.kube.client import Kube
from tests.integration.kube.apiserver import write_kubeconfig
from tests.waiting import eventually, running

pytestmark = pytest.mark.integration

OURS, OTHER = {"name": "gpushare.aliyun.com/admission"}, {"name": "example.com/quota"}


def described(name, *gates):
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {"schedulingGates": list(gates)}}


class Pods:
    """The API of a cluster's pods; the first patches of ``refused`` fail."""

    def __init__(self, *pods, refused=()):
        self.pods = {each["metadata"]["name"]: each for each in pods}
        self.refused = list(refused)
        self.events = asyncio.Queue()
        self.asked = []

    def create(self, pod):
        self.pods[pod["metadata"]["name"]] = pod
        self.events.put_nowait({"type": "ADDED", "object": pod})

    @property
    def gated(self):
        return {name for name, pod in self.pods.items() if OURS in pod["spec"]["schedulingGates"]}

    async def list_or_watch(self, request):
        assert request.query["fieldSelector"] == "spec.nodeName="
        if "watch" not in request.query:
            meta = {"resourceVersion": "1"}
            return web.json_response({"metadata": meta, "items": list(self.pods.values())})
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            event = json.dumps(await self.events.get()).encode()
            await response.write(event + b"\n")

    async def patch(self, request):
        name = request.match_info["name"]
        self.asked.append(name)
        if name in self.refused:
            self.refused.remove(name)
            return web.json_response({"message": "no", "reason": "Forbidden"}, status=403)
        body = await request.json()
        assert body == {
            "metadata": {"uid": f"uid-{name}"},
            "spec": {"schedulingGates": [{"name": OURS["name"], "$patch": "delete"}]},
        }
        self.pods[name]["spec"]["schedulingGates"].remove(OURS)
        return web.json_response({})


class Unfenced:
    def __init__(self, kube):
        self.kube = kube

    async def release_pod(self, pod, patch):
        await self.kube.patch_pod(pod.metadata.namespace, pod.metadata.name, patch)


@asynccontextmanager
async def ungating(pods, tmp_path):
    app = web.Application()
    app.router.add_get("/api/v1/pods", pods.list_or_watch)
    app.router.add_patch("/api/v1/namespaces/team/pods/{name}", pods.patch)
    async with TestServer(app) as server:
        path = write_kubeconfig(tmp_path, str(server.make_url("")))
        async with (
            Kube.connect(path) as kube,
            running(Ungating(kube, Releaser(Unfenced(kube)), SystemClock()).run()),
        ):
            yield


async def test_listed_and_later_pods_lose_our_gate_and_keep_others(tmp_path):
    pods = Pods(
        *(described(f"p{number}", OURS) for number in range(40)),
        described("both", OTHER, OURS),
        described("foreign", OTHER),
        described("free"),
    )
    async with ungating(pods, tmp_path):
        await eventually(lambda: not pods.gated)
        pods.create(described("later", OURS))
        await eventually(lambda: not pods.gated)
    assert pods.pods["both"]["spec"]["schedulingGates"] == [OTHER]
    assert sorted(pods.asked) == sorted({*pods.pods} - {"foreign", "free"})


async def test_a_refusal_holds_up_no_other_pod_and_is_tried_again(tmp_path):
    pods = Pods(described("refused", OURS), described("other", OURS), refused=["refused"] * 2)
    async with ungating(pods, tmp_path):
        await eventually(lambda: not pods.gated)
    assert pods.asked.count("refused") == 3
    assert pods.asked.count("other") == 1
