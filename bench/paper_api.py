"""A paper API server in its own process: objects like those of a cluster, and no etcd.

    python -m bench.paper_api PORT NODES CARDS PODS_A_CARD [OTHERS_A_NODE]

It lists and watches pods and nodes of about 4 and 10 kB, accepts every Binding, and sends it to the
watches. OTHERS_A_NODE pods of each node request no GPU memory. Commands are POSTs under /bench:
``events?count=N`` sends that many changes of bound pods, with ``&others`` of such pods, and then
one pod that fills ``paper-0`` (with ``&others`` the last card of the last node);
``waiting?count=N&prefix=P`` creates pending pods.
"""

import asyncio
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from aiohttp import web

from bench.world import CARD_UNITS, node, node_name
from gpushare.annotations import pod_annotations
from gpushare.cards.model import Card, ContainerRequest, Request
from gpushare.contract import RESOURCE_MEMORY

UNITS: Final = 6
_STAMP: Final = "2026-11-21T20:00:00Z"
_MANAGED: Final = {
    "manager": "kube-controller-manager",
    "operation": "Update",
    "apiVersion": "v1",
    "time": _STAMP,
    "fieldsType": "FieldsV1",
    "fieldsV1": {
        "f:metadata": {"f:labels": {".": {}, "f:app": {}, "f:pod-template-hash": {}}},
        "f:spec": {
            'k:{"name":"main"}': {
                f"f:{name}": {".": {}, "f:limits": {}, "f:requests": {}}
                for name in ("env", "image", "resources", "terminationMessagePath", "ports")
            },
            **{f"f:{name}": {} for name in ("dnsPolicy", "enableServiceLinks", "restartPolicy")},
        },
    },
}


def decision(name: str, index: int, units: int, made_ns: int) -> dict[str, str]:
    card = Card(index, f"GPU-{name}-{index}", CARD_UNITS, minor=index)
    request = Request((ContainerRequest("main", units),))
    return pod_annotations.decision_annotations(
        request, [card], is_legacy=False, assume_time_ns=made_ns
    )


def pod(name: str, units: int, *, version: int, where: str = "", index: int = 0) -> dict[str, Any]:
    """Return a pod of a Deployment, running on ``where`` or, without it, pending.

    With 0 units it requests no GPU memory.
    """
    uid = f"{hash(name) & 0xFFFFFFFF:08x}-5b5e-4c3c-9d5a-{name[:12]:0>12}"
    limits = {RESOURCE_MEMORY: str(units)} if units else {}
    limits |= {"cpu": "4", "memory": "16Gi"}
    container = {
        "name": "main",
        "image": "registry.example.com/team/inference-server:2026.11.3",
        "args": ["--model=/models/base", "--port=8080", "--workers=2"],
        "env": [{"name": f"VARIABLE_{i}", "value": f"value-{i}"} for i in range(8)],
        "ports": [{"containerPort": 8080, "protocol": "TCP"}],
        "resources": {"limits": limits, "requests": limits},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
        "volumeMounts": [
            {
                "name": "kube-api-access-x7k2p",
                "readOnly": True,
                "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
            }
        ],
    }
    token = {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}
    conditions = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")
    status: dict[str, Any] = {"phase": "Pending", "qosClass": "Guaranteed"}
    if where:
        status |= {
            "phase": "Running",
            "startTime": _STAMP,
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": _STAMP}
                for kind in (*conditions, "PodScheduled")
            ],
            "containerStatuses": [
                {
                    "name": "main",
                    "ready": True,
                    "restartCount": 0,
                    "image": container["image"],
                    "imageID": f"registry.example.com/team/inference-server@sha256:{'7' * 64}",
                    "containerID": f"containerd://{uid}{'5' * 28}",
                    "state": {"running": {"startedAt": _STAMP}},
                    "allocatedResources": limits,
                    "resources": container["resources"],
                }
            ],
            "hostIP": "10.0.0.1",
            "podIP": "10.1.0.1",
        }
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "generateName": "inference-7d9c5b8f6d-",
            "namespace": "default",
            "uid": uid,
            "resourceVersion": str(version),
            "creationTimestamp": _STAMP,
            "labels": {"app": "inference", "pod-template-hash": "7d9c5b8f6d"},
            "annotations": decision(where, index, units, hash(name)) if where and units else {},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": f"inference-{hash(name[:8]) & 0xFFFF:04x}",
                    "uid": f"{hash(name[:8]) & 0xFFFFFFFF:08x}-owner",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            "managedFields": [_MANAGED],
        },
        "spec": {
            "volumes": [
                {"name": "kube-api-access-x7k2p", "projected": {"sources": [token, token]}}
            ],
            "containers": [container],
            "restartPolicy": "Always",
            "schedulerName": "default-scheduler",
            "priority": 0,
            "preemptionPolicy": "PreemptLowerPriority",
            "tolerations": [
                {
                    "key": f"node.kubernetes.io/{what}",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                }
                for what in ("not-ready", "unreachable")
            ],
            **({"nodeName": where} if where else {}),
        },
        "status": status,
    }


def whole_node(number: int, cards: int) -> dict[str, Any]:
    """Return a Node with everything that a kubelet reports."""
    found = node(node_name(number), cards)
    found["metadata"] |= {"uid": f"node-{number}", "resourceVersion": "1"}
    found["metadata"]["managedFields"] = [_MANAGED]
    kinds = ("MemoryPressure", "DiskPressure", "PIDPressure")
    found["status"]["conditions"] += [
        {"type": kind, "status": "False", "lastHeartbeatTime": _STAMP, "reason": "Kubelet"}
        for kind in kinds
    ]
    found["status"]["images"] = [
        {"names": [f"registry.example.com/team/image-{i}@sha256:{'8' * 64}"], "sizeBytes": i}
        for i in range(50)
    ]
    return found


Make = Callable[[int], Any]


class PaperApi:
    def __init__(self, nodes: int, cards: int, pods_a_card: int, others_a_node: int = 0) -> None:
        self.nodes, self.cards, self.pods_a_card = nodes, cards, pods_a_card
        self.others_a_node = others_a_node
        self.held_pods = nodes * cards * pods_a_card
        self.version = 1
        self.watches: list[asyncio.Queue[bytes]] = []
        self.waiting: dict[str, dict[str, Any]] = {}

    def held(self, number: int) -> dict[str, Any]:
        where, place = divmod(number, self.cards * self.pods_a_card)
        index = place % self.cards
        name = f"held-{number}"
        return pod(name, UNITS, version=self.version, where=node_name(where), index=index)

    def other_pod(self, number: int) -> dict[str, Any]:
        where = node_name(number // self.others_a_node)
        return pod(f"other-{number}", 0, version=self.version, where=where)

    def any_pod(self, number: int) -> dict[str, Any]:
        is_held = number < self.held_pods
        return self.held(number) if is_held else self.other_pod(number - self.held_pods)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**26)
        app.router.add_get("/api/v1/pods", self.pods)
        app.router.add_get("/api/v1/nodes", self.list_nodes)
        app.router.add_get("/api/v1/namespaces", self.no_namespaces)
        app.router.add_post("/api/v1/namespaces/default/pods/{name}/binding", self.bind)
        app.router.add_get("/api/v1/namespaces/default/pods/{name}", self.get_pod)
        app.router.add_get("/api/v1/namespaces/default/events", self.no_events)
        app.router.add_post("/bench/events", self.events)
        app.router.add_post("/bench/touch", self.touch)
        app.router.add_post("/bench/waiting", self.add_waiting)
        app.router.add_route("*", "/{any:.*}", self.other)
        return app

    async def pods(self, request: web.Request) -> web.StreamResponse:
        is_live = "phase!=" in request.query.get("fieldSelector", "phase!=")
        if "watch" in request.query:
            return await self.watch(request, self.watches if is_live else [])
        count = self.held_pods + self.nodes * self.others_a_node if is_live else 0
        return self.page(request, count, self.any_pod)

    async def list_nodes(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await self.watch(request, [])
        return self.page(request, self.nodes, lambda number: whole_node(number, self.cards))

    async def no_namespaces(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await self.watch(request, [])
        return self.page(request, 0, self.held)

    def page(self, request: web.Request, count: int, make: Make) -> web.Response:
        first, limit = int(request.query.get("continue", 0)), int(request.query.get("limit", count))
        last = min(count, first + limit)
        metadata = {"resourceVersion": str(self.version)}
        if last < count:
            metadata["continue"] = str(last)
        body = {"metadata": metadata, "items": [make(number) for number in range(first, last)]}
        return web.Response(body=msgspec.json.encode(body), content_type="application/json")

    async def watch(
        self, request: web.Request, watches: list[asyncio.Queue[bytes]]
    ) -> web.StreamResponse:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        watches.append(queue)
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(await queue.get())
        finally:
            watches.remove(queue)

    def tell(self, kind: str, found: dict[str, Any]) -> None:
        line = msgspec.json.encode({"type": kind, "object": found}) + b"\n"
        for queue in self.watches:
            queue.put_nowait(line)

    async def bind(self, request: web.Request) -> web.Response:
        binding = msgspec.json.decode(await request.read())
        self.version += 1
        found = self.waiting[request.match_info["name"]]
        found["spec"]["nodeName"] = binding["target"]["name"]
        found["metadata"]["annotations"] = binding["metadata"]["annotations"]
        found["metadata"]["resourceVersion"] = str(self.version)
        self.tell("MODIFIED", found)
        return web.json_response({"kind": "Status", "status": "Success"}, status=201)

    async def get_pod(self, request: web.Request) -> web.Response:
        return web.json_response(self.waiting[request.match_info["name"]])

    async def no_events(self, request: web.Request) -> web.Response:
        return self.page(request, 0, self.held)

    async def touch(self, _: web.Request) -> web.Response:
        self.send(self.held, [0])
        return web.json_response({})

    async def events(self, request: web.Request) -> web.Response:
        is_of_others = "others" in request.query
        make = self.other_pod if is_of_others else self.held
        self.send(make, range(int(request.query["count"])))
        where = node_name(self.nodes - 1 if is_of_others else 0)
        full = pod(f"last-{where}", 10**6, version=self.version, where=where)
        full["metadata"]["annotations"] = {}  # on no card in particular: taken from every one
        self.tell("ADDED", full)
        return web.json_response({})

    def send(self, make: Make, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.version += 1
            changed = make(number)
            changed["metadata"]["labels"]["touched"] = str(self.version)
            self.tell("MODIFIED", changed)

    async def add_waiting(self, request: web.Request) -> web.Response:
        """Create pending pods and answer with them, so that filter can be called for them."""
        prefix, count = request.query["prefix"], int(request.query["count"])
        made = []
        for number in range(count):
            self.version += 1
            name = f"{prefix}-{number}"
            self.waiting[name] = pod(name, 1 + number % UNITS, version=self.version)
            self.tell("ADDED", self.waiting[name])
            made.append(self.waiting[name])
        return web.Response(body=msgspec.json.encode(made), content_type="application/json")

    async def other(self, request: web.Request) -> web.Response:
        if request.method == "GET":
            return web.json_response({"kind": "Status", "code": 404}, status=404)
        return web.json_response(await request.json(), status=201)


async def main() -> None:
    port, *numbers = map(int, sys.argv[1:])
    runner = web.AppRunner(PaperApi(*numbers).app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
