"""A stand-in for Aliyun gpushare's device plugin that follows its rules and has its faults.

    python -m tests.cluster.older_plugin KUBECONFIG NODE UNITS UUID=MINOR...

It offers UNITS of each card. Its rules are those of gpushare-device-plugin at 45fb8b8
(pkg/gpu/nvidia): a device ID is a card's UUID, ``_-_`` and a number (nvidia.go); the number of
cards is patched into the node's status (podmanager.go). Allocate takes the node's Pending pod with
the requested amount, without ASSIGNED and with the earliest ASSUME_TIME, answers with the minor
number in its IDX, and writes ASSIGNED and the time (allocate.go, podutils.go). Without such a pod
it returns an environment that names no card, and no error.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

from gpushare.kube.client import Kube
from gpushare.objects.quantity import parse_units
from protos.deviceplugin.v1beta1 import api_pb2
from tests.cluster.other_plugin import Devices, serve

RESOURCE = "aliyun.com/gpu-mem"
INDEX = "ALIYUN_COM_GPU_MEM_IDX"
ASSUMED = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"


class Older(Devices):
    def __init__(self, kube: Kube, node: str, units: int, cards: Mapping[str, int]) -> None:
        super().__init__([f"{uuid}-_-{number}" for uuid in cards for number in range(units)])
        self._kube, self._node, self._units, self._cards = kube, node, units, cards

    async def report_count(self) -> None:
        """Write the number of cards onto the node, which it does once, before it registers."""
        count = {"aliyun.com/gpu-count": str(len(self._cards))}
        patch = {"status": {"capacity": count, "allocatable": count}}
        await self._kube.patch_node(self._node, patch, status=True)

    async def Allocate(self, request, context):  # noqa: N802 -- the protocol's name
        wanted = sum(len(each.devices_ids) for each in request.container_requests)
        pod = await self._pending(wanted)
        if pod is None:
            environment = {"NVIDIA_VISIBLE_DEVICES": f"no-gpu-has-{wanted}MiB-to-run"}
        else:
            minor = pod["metadata"]["annotations"][INDEX]
            environment = {
                "NVIDIA_VISIBLE_DEVICES": minor,
                INDEX: minor,
                "ALIYUN_COM_GPU_MEM_POD": str(wanted),
                "ALIYUN_COM_GPU_MEM_CONTAINER": str(wanted),
                "ALIYUN_COM_GPU_MEM_DEV": str(self._units),
            }
            meta = pod["metadata"]
            written = {ASSIGNED: "true", ASSUMED: str(time.time_ns())}
            await self._kube.annotate_pod(meta["namespace"], meta["name"], meta["uid"], written)
        answers = [
            api_pb2.ContainerAllocateResponse(envs=environment) for _ in request.container_requests
        ]
        return api_pb2.AllocateResponse(container_responses=answers)

    async def _pending(self, wanted: int) -> dict[str, Any] | None:
        selector = f"spec.nodeName={self._node},status.phase=Pending"
        body = await self._kube.request("GET", "/api/v1/pods", query=[("fieldSelector", selector)])
        found = [each for each in json.loads(body)["items"] if _waits(each, wanted)]
        return min(
            found, key=lambda pod: int(pod["metadata"]["annotations"][ASSUMED]), default=None
        )


def _waits(pod: Mapping[str, Any], wanted: int) -> bool:
    annotations = pod["metadata"].get("annotations", {})
    limits = [each.get("resources", {}).get("limits", {}) for each in pod["spec"]["containers"]]
    return (
        sum(parse_units(each.get(RESOURCE, 0)) for each in limits) == wanted
        and INDEX in annotations
        and annotations.get(ASSIGNED) == "false"
    )


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kubeconfig")
    parser.add_argument("node")
    parser.add_argument("units", type=int)
    parser.add_argument("card", nargs="+")
    flags = parser.parse_args()
    cards = {uuid: int(minor) for uuid, _, minor in (each.partition("=") for each in flags.card)}
    async with Kube.connect(flags.kubeconfig) as kube:
        older = Older(kube, flags.node, flags.units, cards)
        await older.report_count()
        while True:
            await serve(RESOURCE, older)


if __name__ == "__main__":
    asyncio.run(main())
