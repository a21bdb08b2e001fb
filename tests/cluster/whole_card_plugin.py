"""A plugin that gives whole cards as nvidia.com/gpu, in place of NVIDIA's own on its nodes.

    python -m tests.cluster.whole_card_plugin UUID...

It offers the cards named, answers with NVIDIA_VISIBLE_DEVICES, and registers once with the kubelet.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc

from protos.deviceplugin.v1beta1 import api_pb2, api_pb2_grpc

FOLDER = Path("/var/lib/kubelet/device-plugins")
RESOURCE = "nvidia.com/gpu"


class WholeCards(api_pb2_grpc.DevicePluginServicer):
    def __init__(self, uuids: list[str]) -> None:
        self._uuids = uuids

    async def GetDevicePluginOptions(self, request, context):  # noqa: N802 -- the protocol's name
        return api_pb2.DevicePluginOptions()

    async def ListAndWatch(self, request, context) -> AsyncIterator[api_pb2.ListAndWatchResponse]:  # noqa: N802
        yield api_pb2.ListAndWatchResponse(
            devices=[api_pb2.Device(ID=uuid, health="Healthy") for uuid in self._uuids]
        )
        await asyncio.Event().wait()

    async def Allocate(self, request, context):  # noqa: N802
        answers = [
            api_pb2.ContainerAllocateResponse(
                envs={"NVIDIA_VISIBLE_DEVICES": ",".join(sorted(wanted.devices_ids))}
            )
            for wanted in request.container_requests
        ]
        return api_pb2.AllocateResponse(container_responses=answers)


async def serve(uuids: list[str]) -> None:
    server = grpc.aio.server()
    api_pb2_grpc.add_DevicePluginServicer_to_server(WholeCards(uuids), server)
    socket = FOLDER / "whole-cards.sock"
    socket.unlink(missing_ok=True)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{FOLDER / 'kubelet.sock'}") as channel:
        request = api_pb2.RegisterRequest(
            version="v1beta1", endpoint=socket.name, resource_name=RESOURCE
        )
        await api_pb2_grpc.RegistrationStub(channel).Register(request, timeout=10)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1:]))
