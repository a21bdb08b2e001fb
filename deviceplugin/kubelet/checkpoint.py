"""Reads the kubelet's device checkpoint: which container holds which device IDs (pure).

``kubelet_internal_checkpoint`` is the kubelet's own format and no promise to anyone
(kubernetes/pkg/kubelet/cm/devicemanager/checkpoint), so nothing is assumed beyond what is looked
at, and whatever does not read as expected is an error, not an empty node. The kubelet replaces the
file after each Allocate, before the next. Entries of deleted pods stay in it for a while: an entry
does not say that its pod is alive.
"""

import base64
import binascii
from dataclasses import dataclass
from typing import Any

import msgspec

from deviceplugin.errors import CheckpointError
from gpushare.contract import RESOURCE_MEMORY


@dataclass(frozen=True, slots=True)
class Entry:
    """What one container of one pod holds; ``answer`` is the serialised ContainerAllocateResponse.

    The kubelet gives the container that answer at each of its starts.
    """

    pod_uid: str
    container: str
    device_ids: frozenset[str]
    answer: bytes


class _Entry(msgspec.Struct, rename="pascal"):
    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: Any = msgspec.field(name="DeviceIDs", default=None)
    alloc_resp: str | None = None


class _Data(msgspec.Struct, rename="pascal"):
    pod_device_entries: list[_Entry] | None = None


class _Checkpoint(msgspec.Struct, rename="pascal"):
    data: _Data


_decoder = msgspec.json.Decoder(_Checkpoint)


def parse(content: bytes) -> tuple[Entry, ...]:
    """The entries of our resource; CheckpointError if the content is no checkpoint we know."""
    try:
        entries = _decoder.decode(content).data.pod_device_entries or ()
        return tuple(_entry(entry) for entry in entries if entry.resource_name == RESOURCE_MEMORY)
    except (msgspec.DecodeError, binascii.Error, ValueError, RecursionError) as err:
        raise CheckpointError(
            f"the kubelet's device checkpoint cannot be read: {err}; it may be half written, or of "
            f"a kubelet newer than this plugin"
        ) from err


def _entry(entry: _Entry) -> Entry:
    answer = base64.b64decode(entry.alloc_resp or "", validate=True)
    return Entry(entry.pod_uid, entry.container_name, _ids(entry.device_ids), answer)


def _ids(written: Any) -> frozenset[str]:
    # By NUMA node since Kubernetes 1.20, a plain list before.
    groups = list(written.values()) if isinstance(written, dict) else [written or []]
    ids: set[str] = set()
    for group in groups:
        if not isinstance(group, list) or not all(isinstance(text, str) for text in group):
            raise ValueError("DeviceIDs is neither lists by NUMA node nor a list")
        ids.update(group)
    return frozenset(ids)
