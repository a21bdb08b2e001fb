"""Another device plugin, in place of NVIDIA's on its nodes.

    python -m tests.cluster.other_plugin RESOURCE DEVICE...
    python -m tests.cluster.other_plugin --refuse RESOURCE DEVICE...

It returns the devices in NVIDIA_VISIBLE_DEVICES, or rejects every Allocate. It registers again
when the kubelet has made a new socket.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc

from localcluster.wait import patient
from protos.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc

FOLDER = Path("/var/lib/kubelet/device-plugins")
LOOK_SECONDS = 0.05


class Devices(api_pb2_grpc.DevicePluginServicer):
    def __init__(self, names: Sequence[str], *, refuse: bool = False) -> None:
        self._names = names
        self._refuse = refuse

    async def GetDevicePluginOptions(self, request, context):  # noqa: N802 -- the protocol's name
        return api_pb2.DevicePluginOptions()

    async def ListAndWatch(self, request, context) -> AsyncIterator[api_pb2.ListAndWatchResponse]:  # noqa: N802
        yield api_pb2.ListAndWatchResponse(
            devices=[api_pb2.Device(ID=name, health="Healthy") for name in self._names]
        )
        await asyncio.Event().wait()

    async def Allocate(self, request, context):  # noqa: N802
        if self._refuse:
            await context.abort(grpc.StatusCode.INTERNAL, "this plugin refuses every pod")
        answers = [
            api_pb2.ContainerAllocateResponse(
                envs={"NVIDIA_VISIBLE_DEVICES": ",".join(sorted(wanted.devices_ids))}
            )
            for wanted in request.container_requests
        ]
        return api_pb2.AllocateResponse(container_responses=answers)


async def serve(resource: str, devices: api_pb2_grpc.DevicePluginServicer) -> None:
    """Serve to one kubelet until it makes another socket."""
    kubelet = FOLDER / "kubelet.sock"
    socket = FOLDER / f"{resource.replace('/', '-')}.sock"
    socket.unlink(missing_ok=True)
    server = grpc.aio.server()
    api_pb2_grpc.add_DevicePluginServicer_to_server(devices, server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{kubelet}") as channel:
        request = api_pb2.RegisterRequest(
            version="v1beta1", endpoint=socket.name, resource_name=resource
        )
        await api_pb2_grpc.RegistrationStub(channel).Register(request, timeout=patient(10))
    while socket.exists():  # noqa: ASYNC110 -- the kubelet deletes it; nothing tells us
        await asyncio.sleep(LOOK_SECONDS)
    await server.stop(None)
    while not kubelet.exists():  # noqa: ASYNC110
        await asyncio.sleep(LOOK_SECONDS)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--refuse", action="store_true")
    parser.add_argument("resource")
    parser.add_argument("device", nargs="+")
    flags = parser.parse_args()
    while True:
        await serve(flags.resource, Devices(flags.device, refuse=flags.refuse))


if __name__ == "__main__":
    asyncio.run(main())
