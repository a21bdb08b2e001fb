"""Answers to Allocate, and reading them back out of the kubelet's checkpoint (pure).

The kubelet gives a container the same answer at each of its starts, for as long as its pod lives:
over restarts of this program, and over a change from one binding to the other.
"""

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from deviceplugin.allocation.grant import visible_cards
from deviceplugin.cdi import spec_files
from deviceplugin.errors import Refused
from gpushare.cards.model import Inventory
from gpushare.contract import ENV_VISIBLE_DEVICES, NO_CARD
from protos.deviceplugin.v1beta1 import api_pb2


@dataclass(frozen=True, slots=True)
class Answered:
    """What Allocate has answered: the share behind a CDI name, cards, or both.

    Where both are there, a runtime that resolves the name goes by its file and any other by the
    cards.
    """

    share: str
    cards: frozenset[str]


def late(share: str) -> api_pb2.ContainerAllocateResponse:
    """No card yet: the CDI name stands for it, and without CDI the container sees none at all."""
    return api_pb2.ContainerAllocateResponse(
        envs={ENV_VISIBLE_DEVICES: NO_CARD},
        cdi_devices=[api_pb2.CDIDevice(name=spec_files.device_name(share))],
    )


def early(environment: dict[str, str], share: str = "") -> api_pb2.ContainerAllocateResponse:
    """The card itself; with ``share`` also the CDI name, whose file says the same."""
    response = api_pb2.ContainerAllocateResponse(envs=environment)
    if share:
        response.cdi_devices.add(name=spec_files.device_name(share))
    return response


def read(answer: bytes, inventory: Inventory | None) -> Answered:
    """What a serialised answer said; Refused if it cannot be read."""
    try:
        response = api_pb2.ContainerAllocateResponse.FromString(answer)
    except DecodeError as err:
        raise Refused(f"the answer in the kubelet's checkpoint cannot be read: {err}") from err
    shares = [spec_files.share_of_device(device.name) for device in response.cdi_devices]
    share = next((share for share in shares if share), "")
    return Answered(share, visible_cards(response.envs, inventory))
