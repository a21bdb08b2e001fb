"""Answers to Allocate, and reading them back from the kubelet's checkpoint (pure).

The kubelet gives a container the same answer at each of its starts, for as long as its pod lives:
across restarts of this program, and across a change of the binding.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from deviceplugin.allocation.rules import visible_cards
from deviceplugin.cdi import spec_files
from deviceplugin.errors import Refused
from gpushare.cards.model import Inventory
from gpushare.contract import ENV_MEMORY_LIMITS, ENV_VISIBLE_DEVICES, NO_CARD
from protos.deviceplugin.v1beta1 import api_pb2


@dataclass(frozen=True, slots=True)
class Answered:
    """What Allocate answered: the share behind a CDI name, GPUs, or both.

    With both, a runtime that resolves the name uses its file, and any other runtime the GPUs.
    ``told`` are the variables for NVIDIA's hook that limits memory.
    """

    share: str
    cards: frozenset[str]
    told: Mapping[str, str]


def late(share: str, told: Mapping[str, str]) -> api_pb2.ContainerAllocateResponse:
    """Answer with no GPU yet: the CDI name stands for it, and without CDI none is visible.

    ``told`` are the variables for NVIDIA's hook, where they are known already.
    """
    return api_pb2.ContainerAllocateResponse(
        envs={ENV_VISIBLE_DEVICES: NO_CARD, **told},
        cdi_devices=[api_pb2.CDIDevice(name=spec_files.device_name(share))],
    )


def early(environment: dict[str, str], share: str = "") -> api_pb2.ContainerAllocateResponse:
    """Answer with the GPU; with ``share`` also with the CDI name, whose file says the same."""
    response = api_pb2.ContainerAllocateResponse(envs=environment)
    if share:
        response.cdi_devices.add(name=spec_files.device_name(share))
    return response


def read(answer: bytes, inventory: Inventory | None) -> Answered:
    """Decode a serialized answer; Refused if it cannot be decoded."""
    try:
        response = api_pb2.ContainerAllocateResponse.FromString(answer)
    except DecodeError as err:
        raise Refused(f"the answer in the kubelet's checkpoint cannot be decoded: {err}") from err
    shares = (spec_files.share_of_device(device.name) for device in response.cdi_devices)
    share = next((share for share in shares if share), "")
    told = {name: response.envs[name] for name in ENV_MEMORY_LIMITS if name in response.envs}
    return Answered(share, visible_cards(response.envs, inventory), told)
