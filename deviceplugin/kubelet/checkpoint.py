"""Reads the kubelet's device checkpoint: which container holds which device IDs.

``kubelet_internal_checkpoint`` is the kubelet's own format and not a stable API
(kubernetes/pkg/kubelet/cm/devicemanager/checkpoint), so nothing is assumed beyond the fields read
here, and any other content is an error, not an empty node. The kubelet replaces the file after each
Allocate, before the next, and after each device list that it has taken in. Entries of deleted pods
stay in it for a while: an entry does not prove that its pod is alive.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from deviceplugin.errors import CheckpointError
from deviceplugin.foreign_files import read_bytes
from gpushare.contract import RESOURCE_MEMORY

# Ten times the size for the longest device list. The file is read between two calls of the kubelet,
# so an endless one must not be read.
MAX_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """The devices of one container, and ``answer``, the serialized ContainerAllocateResponse.

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
    device_ids: msgspec.Raw = msgspec.field(name="DeviceIDs", default=msgspec.Raw(b"null"))
    alloc_resp: str | None = None

    @property
    def key(self) -> "_Key":
        return self.pod_uid, self.container_name, bytes(self.device_ids), self.alloc_resp


class _Data(msgspec.Struct, rename="pascal"):
    pod_device_entries: list[_Entry] | None = None


class _Checkpoint(msgspec.Struct, rename="pascal"):
    data: _Data


class _Devices(msgspec.Struct, rename="pascal"):
    registered_devices: dict[str, list[str] | None] | None = None


class _DevicesOnly(msgspec.Struct, rename="pascal"):
    data: _Devices


_Key = tuple[str, str, bytes, str | None]  # of an entry: all that is read of it, as written
_NONE_KNOWN: Final[Mapping[_Key, Entry]] = {}
_decoder = msgspec.json.Decoder(_Checkpoint)
_decoder_of_devices = msgspec.json.Decoder(_DevicesOnly)


def parse(content: bytes, known: Mapping[_Key, Entry] = _NONE_KNOWN) -> dict[_Key, Entry]:
    """Return the entries of our resource; CheckpointError for content of another format.

    Those that are ``known`` from an earlier content are not decoded again: a container has up to
    100,000 devices.
    """
    try:
        entries = _decoder.decode(content).data.pod_device_entries or ()
        ours = ((each.key, each) for each in entries if each.resource_name == RESOURCE_MEMORY)
        return {key: known.get(key) or _entry(each) for key, each in ours}
    except (msgspec.DecodeError, binascii.Error, ValueError, RecursionError) as err:
        raise CheckpointError(
            f"the kubelet's device checkpoint cannot be read: {err}; it may be half written, or "
            f"written by a kubelet newer than this plugin"
        ) from err


def has_devices(content: bytes) -> bool:
    """Return whether the kubelet had a healthy device of ours; CheckpointError as ``parse``."""
    try:
        devices = _decoder_of_devices.decode(content).data.registered_devices or {}
    except (msgspec.DecodeError, ValueError, RecursionError) as err:
        raise CheckpointError(f"the kubelet's device checkpoint cannot be read: {err}") from err
    return bool(devices.get(RESOURCE_MEMORY))


def _entry(entry: _Entry) -> Entry:
    answer = base64.b64decode(entry.alloc_resp or "", validate=True)
    ids = _ids(msgspec.json.decode(entry.device_ids))
    return Entry(entry.pod_uid, entry.container_name, ids, answer)


def _ids(written: Any) -> frozenset[str]:
    # By NUMA node since Kubernetes 1.20, a plain list before.
    groups = list(written.values()) if isinstance(written, dict) else [written or []]
    ids: set[str] = set()
    for group in groups:
        if not isinstance(group, list) or not all(isinstance(text, str) for text in group):
            raise ValueError("DeviceIDs is neither lists by NUMA node nor a list")
        ids.update(group)
    return frozenset(ids)


Version = tuple[int, int, int]


class CheckpointFile:
    """The checkpoint on disk, parsed again only when the kubelet has replaced it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version: Version | None = None
        self._entries: dict[_Key, Entry] = {}

    def read(self) -> tuple[Entry, ...]:
        """Return the current entries of our resource; none where there is no checkpoint yet.

        Raises CheckpointError if the file cannot be read, is not a regular file, or is too long.
        """
        try:
            version = self._found()
            if version != self._version:
                self._entries = parse(read_bytes(self._path, MAX_BYTES), self._entries)
                self._version = version
        except FileNotFoundError:
            self._version, self._entries = None, {}
        except OSError as err:
            raise CheckpointError(f"the kubelet's device checkpoint: {err}") from err
        return tuple(self._entries.values())

    def version(self) -> Version | None:
        """Return what changes whenever the kubelet writes the file; None without a file."""
        try:
            return self._found()
        except OSError:
            return None

    def has_devices_since(self, version: Version | None) -> bool:
        """Return whether the kubelet has written healthy devices of ours after ``version``.

        A kubelet that loses a plugin does not write that: the content alone proves nothing. Raises
        CheckpointError as ``read``.
        """
        if self.version() in {None, version}:
            return False
        try:
            return has_devices(read_bytes(self._path, MAX_BYTES))
        except FileNotFoundError:
            return False
        except OSError as err:
            raise CheckpointError(f"the kubelet's device checkpoint: {err}") from err

    def _found(self) -> Version:
        status = self._path.stat()
        return status.st_ino, status.st_size, status.st_mtime_ns
