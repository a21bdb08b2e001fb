"""A gRPC double of the kubelet's device manager, with its rules and its limits.

What it does is what Kubernetes 1.34 does (pkg/kubelet/cm/devicemanager): it dials back inside
Register, takes 4,194,304 bytes a message, calls GetPreferredAllocation with all free devices and
takes what is both preferred and free, calls Allocate once a container, replaces its checkpoint
after that and after each device list, hands an init container's devices on to later containers, and
gives PreStartContainer 30 seconds. It admits one pod at a time; ``pods`` is what its HTTPS port
would list.

It knows its plugin by the resource's name (plugin/v1beta1/handler.go): one that registers takes the
place of the other, whose list is still read; when any list ends, whatever plugin has the name then
is disconnected; a registration that fails leaves no plugin under the name.

With ``by_socket`` it knows plugins by their sockets instead (kubernetes #135437): the end of a list
concerns its own plugin only, and a socket whose list is being read is not read a second time. What
it says when that one registers once more is "takes" (and does nothing) or "rejects".
"""

import asyncio
import base64
import json
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import grpc

from deviceplugin.kubelet.node_pod import NodePod
from gpushare.cards.model import ContainerRequest
from gpushare.contract import RESOURCE_MEMORY
from localcluster.wait import patient
from protos.deviceplugin.v1beta1 import api_pb2

MAX_MESSAGE_BYTES = 4_194_304
CHECKPOINT = "kubelet_internal_checkpoint"


def checkpoint(
    held: Mapping[tuple[str, str], tuple[Iterable[str], bytes]], registered: Iterable[str] = ()
) -> str:
    """Return the kubelet's checkpoint with IDs and answer by pod uid and container."""
    entries = [
        {
            "PodUID": uid,
            "ContainerName": container,
            "ResourceName": RESOURCE_MEMORY,
            "DeviceIDs": {"-1": sorted(ids)},
            "AllocResp": base64.b64encode(answer).decode(),
        }
        for (uid, container), (ids, answer) in held.items()
    ]
    devices = {RESOURCE_MEMORY: sorted(registered)}
    data = {"PodDeviceEntries": entries, "RegisteredDevices": devices}
    return json.dumps({"Data": data, "Checksum": 1})


class Rejected(Exception):
    """The pod is Failed for good."""


def _asked_unread(pod: NodePod) -> list[ContainerRequest]:
    """Return what a kubelet reads of containers that the plugin does not."""
    amounts = ((each.name, int(each.limits.get(RESOURCE_MEMORY, 0))) for each in pod.containers)
    return [ContainerRequest(name, units) for name, units in amounts if units]


class FakeKubelet:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pods: list[NodePod] = []
        self.pods_fail: Exception | None = None
        self.devices: dict[str, str] = {}
        self.lists: list[int] = []
        self.least = 0  # healthy devices at the worst moment since a test set this
        self.registrations = 0
        self.refuse_registration = ""
        self.refusals = 0
        self.by_socket: Literal["", "takes", "rejects"] = ""
        self.repeated = 0  # registrations of a socket whose list was being read
        self.held: dict[tuple[str, str], tuple[frozenset[str], bytes]] = {}
        self.changed = asyncio.Condition()
        self.drops_next = False  # the next to connect, for an earlier list that has ended by now
        self.may_take_in = asyncio.Event()  # clear: it reads device lists, and does nothing more
        self.may_take_in.set()
        self._server: grpc.aio.Server | None = None
        self._channel: grpc.aio.Channel | None = None  # where calls go
        self._named: grpc.aio.Channel | None = None
        self._readers: dict[asyncio.Task, grpc.aio.Channel] = {}
        self._sockets: set[str] = set()  # whose lists are being read

    # What its HTTPS port answers.

    async def fetch(self) -> list[NodePod]:
        if self.pods_fail is not None:
            raise self.pods_fail
        return list(self.pods)

    # Life and death.

    async def start(self) -> None:
        """Delete every socket in the folder, then make kubelet.sock."""
        for path in self.folder.iterdir():
            if path.is_socket():
                path.unlink()
        self._server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(
            self._register,
            request_deserializer=api_pb2.RegisterRequest.FromString,
            response_serializer=api_pb2.Empty.SerializeToString,
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": handler}),)
        )
        self._server.add_insecure_port(f"unix:{self.folder / 'kubelet.sock'}")
        await self._server.start()

    async def stop(self, *, leave_socket: bool = False) -> None:
        """End; a real kubelet leaves its socket behind, with nobody listening."""
        await self.cut_stream()
        if self._server is not None:
            await self._server.stop(0)
            self._server = None
        if leave_socket:
            left = self.folder / "kubelet.sock"
            left.unlink(missing_ok=True)
            with socket.socket(socket.AF_UNIX) as abandoned:
                abandoned.bind(str(left))

    async def restart(self) -> None:
        await self.stop()
        self.devices = {}
        await self.start()

    async def cut_stream(self) -> None:
        """End all device lists from this side, as the kubelet does with one that is too long."""
        readers, self._readers = self._readers, {}
        for reader, channel in readers.items():
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            await channel.close()
        self._channel = self._named = None

    async def until(self, condition, seconds: float = 10.0) -> None:
        """Wait until ``condition()`` holds; it is checked at every change."""
        try:
            async with asyncio.timeout(patient(seconds)), self.changed:
                await self.changed.wait_for(condition)
        except TimeoutError as problem:
            seen = f"{self.registrations} registrations, {self.allocatable} units allocatable"
            raise TimeoutError(f"the kubelet has seen {seen}") from problem

    @property
    def allocatable(self) -> int:
        return sum(health == "Healthy" for health in self.devices.values())

    async def _register(self, request, context) -> api_pb2.Empty:
        if self.refuse_registration:
            self.refusals += 1
            await context.abort(grpc.StatusCode.UNKNOWN, self.refuse_registration)
        assert request.version == "v1beta1"
        assert request.resource_name == RESOURCE_MEMORY
        if self.by_socket and request.endpoint in self._sockets:
            self.repeated += 1
            await self._notify()
            if self.by_socket == "rejects":
                await context.abort(grpc.StatusCode.UNKNOWN, "registered already")
            return api_pb2.Empty()
        channel = grpc.aio.insecure_channel(
            f"unix:{self.folder / request.endpoint}",
            options=[
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )
        before, self._named = self._named, channel
        try:
            ask = channel.unary_unary(
                "/v1beta1.DevicePlugin/GetDevicePluginOptions",
                response_deserializer=api_pb2.DevicePluginOptions.FromString,
            )
            self.options = await ask(b"", timeout=patient(10))
        except grpc.aio.AioRpcError as err:
            self._named = before if self.by_socket else None
            await channel.close()
            await context.abort(grpc.StatusCode.UNKNOWN, err.details())
        self._channel = channel
        if self.drops_next:
            self.drops_next = False
            self._named = None
            self.devices = dict.fromkeys(self.devices, "Unhealthy")
            await channel.close()
            await self._notify()
            return api_pb2.Empty()
        self._sockets.add(request.endpoint)
        self._readers[asyncio.create_task(self._read(channel, request.endpoint))] = channel
        self.registrations += 1
        await self._notify()
        return api_pb2.Empty()

    async def _read(self, channel, endpoint: str) -> None:
        stream = channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch")(b"")
        try:
            async for message in stream:
                self.lists.append(len(message))
                listed = api_pb2.ListAndWatchResponse.FromString(message)
                await self.may_take_in.wait()
                self.devices = {device.ID: device.health for device in listed.devices}
                self.write_checkpoint()
                await self._notify()
        except grpc.aio.AioRpcError:
            pass
        finally:
            self._sockets.discard(endpoint)
        if self.by_socket and self._named is not channel:
            return
        named, self._named = self._named, None
        if named is not None:
            self.devices = dict.fromkeys(self.devices, "Unhealthy")
            await named.close()
            await self._notify()

    async def _notify(self) -> None:
        self.least = min(self.least, self.allocatable)
        async with self.changed:
            self.changed.notify_all()

    # Admission and start of containers.

    async def admit(self, pod: NodePod) -> None:
        """Add the pod, then ask for its devices, container by container; Rejected if refused."""
        self.pods.append(pod)
        reusable: set[str] = set()
        for container in pod.asked if pod.asked is not None else _asked_unread(pod):
            ids = await self._choose(container.units, reusable)
            try:
                answer = await self.allocate(sorted(ids, key=hash))
            except grpc.aio.AioRpcError as err:
                raise Rejected(err.details()) from err
            self.hold(pod, ids, answer.SerializeToString(), container.name)
            if container.kind == "init":
                reusable |= ids
            else:
                reusable -= ids

    async def _choose(self, units: int, reusable: set[str]) -> set[str]:
        chosen = set(sorted(reusable)[:units])
        if len(chosen) == units:
            return chosen
        taken = set().union(*(ids for ids, _ in self.held.values())) if self.held else set()
        free = [i for i, health in self.devices.items() if health == "Healthy" and i not in taken]
        if len(free) < units - len(chosen):
            raise Rejected(f"Requested: {units}, Available: {len(free)}")
        request = api_pb2.PreferredAllocationRequest(
            container_requests=[
                {
                    "available_deviceIDs": [*free, *chosen],
                    "must_include_deviceIDs": sorted(chosen),
                    "allocation_size": units,
                }
            ]
        )
        response = await self.call("GetPreferredAllocation", request)
        is_free = frozenset(free)
        for wish in response.container_responses[0].deviceIDs:
            if wish in is_free and len(chosen) < units:
                chosen.add(wish)
        for other in free:
            if len(chosen) == units:
                break
            chosen.add(other)
        return chosen

    async def allocate(self, ids: Sequence[str]) -> api_pb2.ContainerAllocateResponse:
        """Call Allocate for one container."""
        request = api_pb2.AllocateRequest(container_requests=[{"devices_ids": ids}])
        (answer,) = (await self.call("Allocate", request)).container_responses
        return answer

    def hold(
        self, pod: NodePod, ids: Iterable[str], answer: bytes = b"", container: str = "app-0"
    ) -> None:
        """Record in the checkpoint which devices a container has."""
        self.held[pod.uid, container] = frozenset(ids), answer
        self.write_checkpoint()

    async def run(self, pod: NodePod) -> None:
        """Admit a pod of one container, and let it start."""
        await self.admit(pod)
        await self.pre_start(pod)

    async def pre_start(self, pod: NodePod, container: str = "app-0") -> None:
        """Let a container start; AioRpcError with the plugin's text if it must not."""
        ids, _ = self.held[pod.uid, container]
        await self.call(
            "PreStartContainer", api_pb2.PreStartContainerRequest(devices_ids=ids), seconds=30
        )

    def answer(self, pod: NodePod, container: str = "app-0") -> api_pb2.ContainerAllocateResponse:
        """What the kubelet gives to the container at each start."""
        return api_pb2.ContainerAllocateResponse.FromString(self.held[pod.uid, container][1])

    def forget(self, pod: NodePod) -> None:
        """The pod is gone: its devices are free again."""
        self.pods = [other for other in self.pods if other.uid != pod.uid]
        self.held = {key: value for key, value in self.held.items() if key[0] != pod.uid}

    def write_checkpoint(self) -> None:
        fresh = self.folder / (CHECKPOINT + ".new")
        healthy = [i for i, health in self.devices.items() if health == "Healthy"]
        fresh.write_text(checkpoint(self.held, healthy))
        fresh.replace(self.folder / CHECKPOINT)

    async def call(self, name: str, request, seconds: float = 30):
        """One call of the plugin, as it stands."""
        answers = {
            "GetDevicePluginOptions": api_pb2.DevicePluginOptions,
            "GetPreferredAllocation": api_pb2.PreferredAllocationResponse,
            "Allocate": api_pb2.AllocateResponse,
            "PreStartContainer": api_pb2.PreStartContainerResponse,
        }
        assert self._channel is not None, "no plugin is registered"
        call = self._channel.unary_unary(
            f"/v1beta1.DevicePlugin/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answers[name].FromString,
        )
        return await call(request, timeout=patient(seconds))
