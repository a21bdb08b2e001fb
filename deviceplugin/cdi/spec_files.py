"""The files behind late binding: one CDI specification for each set of device IDs.

Allocate names a CDI device before its pod is known; the runtime resolves the name when it creates
the container, which is after PreStartContainer has written the file. The format is
CDI 0.6.0 (github.com/cncf-tags/container-device-interface, SPEC.md).
"""

import hashlib
import logging
import os
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from deviceplugin.errors import Refused
from deviceplugin.foreign_files import read_bytes
from gpushare.contract import CDI_KIND
from gpushare.errors import UNDECODABLE

log = logging.getLogger(__name__)

VERSION: Final = "0.6.0"
FILE_PREFIX: Final = "gpushare-"
_MOST_BYTES: Final = 8 * 2**20  # about ten files of NVIDIA's in one, with --inject=cdi
_POD_UID: Final = "gpushare.aliyun.com/pod-uid"


class _Edits(msgspec.Struct):
    env: list[str] = []


class _Device(msgspec.Struct, rename="camel"):
    name: str
    container_edits: _Edits


class _Spec(msgspec.Struct, rename="camel"):
    annotations: dict[str, str]
    devices: list[_Device]


_decoder = msgspec.json.Decoder(_Spec)


@dataclass(frozen=True, slots=True)
class Edits:
    """A CDI ``containerEdits`` object, and the lowest CDI version that supports all of it."""

    version: tuple[int, ...] = ()
    content: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Given:
    """A file's content: variables for the pod ``pod_uid``, which override ``edits``."""

    pod_uid: str
    environment: Mapping[str, str]
    edits: Edits = field(default_factory=Edits, compare=False)


def share_name(device_ids: Iterable[str]) -> str:
    """Return the name of a set of device IDs: the same in any order, across restarts."""
    return hashlib.sha256(",".join(sorted(device_ids)).encode()).hexdigest()[:32]


def device_name(share: str) -> str:
    """Return the CDI device name of a share."""
    return f"{CDI_KIND}={share}"


def share_of_device(name: str) -> str:
    """Return the share of a CDI device name; empty for names of other kinds."""
    kind, _, share = name.partition("=")
    return share if kind == CDI_KIND else ""


def parse_version(text: str) -> tuple[int, ...] | None:
    """Return a CDI version as comparable numbers; None for any other text."""
    is_version = re.fullmatch(r"v?[0-9]{1,6}(\.[0-9]{1,6}){1,2}", text) is not None
    return tuple(int(part) for part in text.removeprefix("v").split(".")) if is_version else None


class Specs:
    """The specification files of this node, in the folder that the runtime reads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, share: str, given: Given) -> None:
        """Write the file in one step. Refused, so that it is tried again, if that fails."""
        content = msgspec.json.encode(_spec(share, given))
        if len(content) > _MOST_BYTES:
            raise Refused(
                f"the CDI file for pod {given.pod_uid} would have {len(content)} bytes, more than "
                f"the limit of {_MOST_BYTES}: make NVIDIA's CDI files smaller"
            )
        path = self._path(share)
        # Not .json: the runtime must not read it half written.
        fresh = path.with_suffix(".new")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with fresh.open("wb") as file:
                os.fchmod(file.fileno(), 0o644)
                file.write(content)
            fresh.replace(path)
        except OSError as err:
            raise Refused(f"the CDI file for pod {given.pod_uid} cannot be written: {err}") from err

    def withdraw(self, share: str) -> None:
        """Delete the file that these devices had before they were allocated again.

        A runtime notices a change of the folder in a thread of its own (pkg/cdi/cache.go), so a
        container that is created right after ``write`` may still get the previous content. Without
        the file it gets an error instead, and is retried.
        """
        try:
            self._path(share).unlink(missing_ok=True)
        except OSError as err:
            log.warning("an old CDI file stays until the start", extra={"why": str(err)})

    def read(self, share: str) -> Given | None:
        """Return the content of a share's file; None where it cannot be read."""
        try:
            spec = _decoder.decode(read_bytes(self._path(share), _MOST_BYTES))
        except (OSError, *UNDECODABLE):
            return None
        variables = [text for device in spec.devices for text in device.container_edits.env]
        environment = dict(text.split("=", 1) for text in variables if "=" in text)
        return Given(spec.annotations.get(_POD_UID, ""), environment)

    def sweep(self, live: Container[str], before: float) -> int:
        """Delete files written before ``before`` whose pod uid is not ``live``; return how many.

        Unreadable files and temporary files of a killed predecessor are deleted, too. ``before`` is
        seconds since the epoch. The runtime reads every file of the folder again whenever one
        changes, so leftover files make every start slower.
        """
        gone = 0
        left: list[OSError] = []
        try:
            paths = list(self._folder.glob(f"{FILE_PREFIX}*"))
        except OSError as err:
            paths, left = [], [err]
        for path in paths:
            try:
                if path.lstat().st_mtime < before and self._uid_in(path) not in live:
                    path.unlink(missing_ok=True)
                    gone += 1
            except OSError as err:
                left.append(err)
        if left:
            log.warning(
                "CDI files could not be deleted", extra={"why": str(left[0]), "of": len(left)}
            )
        return gone

    def _uid_in(self, path: Path) -> str:
        if path.suffix != ".json":
            return ""
        given = self.read(path.stem.removeprefix(FILE_PREFIX))
        return given.pod_uid if given is not None else ""

    def _path(self, share: str) -> Path:
        return self._folder / f"{FILE_PREFIX}{share}.json"


def _spec(share: str, given: Given) -> dict[str, Any]:
    own = [f"{name}={value}" for name, value in given.environment.items()]
    others = [
        text
        for text in given.edits.content.get("env", ())
        if str(text).partition("=")[0] not in given.environment
    ]
    version = max(given.edits.version, parse_version(VERSION) or ())
    return {
        "cdiVersion": ".".join(map(str, version)),
        "kind": CDI_KIND,
        "annotations": {_POD_UID: given.pod_uid},
        "devices": [
            {"name": share, "containerEdits": {**given.edits.content, "env": [*others, *own]}}
        ],
    }
