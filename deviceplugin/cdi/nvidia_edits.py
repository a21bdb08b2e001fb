"""Reads the container edits of a GPU from NVIDIA's own CDI files on this node.

``nvidia-ctk cdi generate`` writes them: device nodes, libraries and hooks of this driver. The edits
that a container needs are copied into the file of its share, so that no second CDI name has to be
known when Allocate answers.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from deviceplugin.cdi.spec_files import FILE_PREFIX, Edits, parse_version
from deviceplugin.driver.interface import NO_MINOR
from deviceplugin.errors import Refused
from deviceplugin.foreign_files import read_bytes, shown
from gpushare.cards.model import Card
from gpushare.text.yaml_events import MAX_DEPTH, with_depth

log = logging.getLogger(__name__)

KIND: Final = "nvidia.com/gpu"
COMMAND: Final = "nvidia-ctk cdi generate --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml"
_MOST_BYTES: Final = 2**19  # a second of parsing without answers; NVIDIA's have 50 KB
_MOST_CHARACTERS: Final = 2**14  # of one value: PyYAML parses 1:59:59:... as a number, ever slower
_SHOWN_PROBLEMS: Final = 3
_CARD_NODE: Final = re.compile(r"/dev/nvidia([0-9]{1,6})$")
# The library of one version of the kernel module, and the version that the module reports.
_LIBRARY: Final = re.compile(r"/libcuda\.so\.([0-9]{1,6}(?:\.[0-9]{1,6}){1,3})$")
_MODULE: Final = re.compile(rb"Kernel Module(?: for \S+)?\s+([0-9]{1,6}(?:\.[0-9]{1,6}){1,3})\s")
MODULE_FILE: Final = Path("/proc/driver/nvidia/version")
_MODULE_BYTES: Final = 4096
_LIMIT_HOOK: Final = "apply-cuda-memory-limits"
_GPU_ID: Final = "--gpu-id"


class _Device(msgspec.Struct, rename="camel"):
    name: str
    container_edits: dict[str, Any] = {}


class _Checked(msgspec.Struct, rename="camel"):
    """The edits that are read here; only the runtime knows the format of the others."""

    env: list[str] | None = None
    device_nodes: list[dict[str, Any]] | None = None
    hooks: list[dict[str, Any]] | None = None


class _Spec(msgspec.Struct, rename="camel"):
    kind: str
    cdi_version: str = ""
    container_edits: dict[str, Any] | None = None
    devices: list[_Device] = []


@dataclass(frozen=True, slots=True)
class _File:
    """A file as it was read: its edits by device name, or its problem."""

    version: tuple[int, ...] = ()
    common: Mapping[str, Any] | None = None
    devices: Mapping[str, Mapping[str, Any]] | None = None
    problem: str = ""


class NvidiaSpecs:
    """Files are read again when they change. Later folders have precedence, as in CDI.

    ``module`` is the file with the version of the loaded driver.
    """

    def __init__(self, folders: Sequence[Path], module: Path = MODULE_FILE) -> None:
        self._folders = folders
        self._module = module
        self._files: dict[Path, tuple[tuple[int, int, int], _File]] = {}

    def edits(self, cards: Sequence[Card]) -> Edits:
        """Return the edits to use these GPUs: the common ones once, then those of each GPU.

        Raises Refused, which names what was found and the command that writes such a file. A file
        is also refused if it gives a GPU another number than the driver does now, because it is
        older than a change of the GPUs and would give access to another one; and if it has
        libraries of another driver than the loaded one, which no longer exist.
        """
        files = list(self._read())
        merged: dict[str, Any] = {}
        version: tuple[int, ...] = ()
        merged_files: list[_File] = []
        for card in cards:
            uuid = card.uuid
            file = next((each for each in files if uuid in (each.devices or {})), None)
            if file is None:
                raise Refused(self._missing(uuid, files))
            _check_number(card, (file.devices or {})[uuid])
            if file not in merged_files:
                if other := self._other_driver(file.common or {}):
                    raise Refused(
                        f"--inject=cdi: the CDI file with {KIND}={uuid} was made for {other}: "
                        f"write the file again on the node with `{COMMAND}`"
                    )
                merged_files.append(file)
                _merge(merged, file.common or {})
            _merge(merged, (file.devices or {})[uuid])
            version = max(version, file.version)
        return Edits(version, merged)

    def limit_hook(self, cards: Sequence[Card]) -> Edits:
        """Return the hook of NVIDIA's toolkit that limits memory, for these GPUs.

        Of a GPU without one in NVIDIA's files it is that of another, because its program and the
        driver's root are the same for all. Raises Refused if no file has it.
        """
        found = list(self._limit_hooks())
        if not found:
            raise Refused(self._no_hook())
        hooks = []
        for card in cards:
            own = (hook for name, hook, _ in found if name == card.uuid)
            hook = next(own, found[0][1])
            hooks.append({**hook, "args": _for_card(hook["args"], card)})
        return Edits(max(version for _, _, version in found), {"hooks": hooks})

    def why_no_limit_hook(self) -> str:
        """Return why ``limit_hook`` fails; empty if it does not."""
        return "" if any(True for _ in self._limit_hooks()) else self._no_hook()

    def _limit_hooks(self) -> Iterator[tuple[str, Mapping[str, Any], tuple[int, ...]]]:
        """Return device name, hook and CDI version of those in files for the loaded driver."""
        for file in self._read():
            if self._other_driver(file.common or {}):
                continue
            for name, edits in (file.devices or {}).items():
                if (hook := _limit_hook(edits)) is not None:
                    yield name, hook, file.version

    def _no_hook(self) -> str:
        return (
            f"no CDI file of NVIDIA's in {', '.join(map(str, self._folders))} has the hook "
            f"{_LIMIT_HOOK}: install NVIDIA's container toolkit 1.20.1 or newer on the node, and "
            f"write the file with `{COMMAND}`"
        )

    def _read(self) -> Iterator[_File]:
        """Return NVIDIA's files by precedence; an unreadable one has a problem."""
        seen: dict[Path, tuple[tuple[int, int, int], _File]] = {}
        for path in self._paths():
            known = self._files.get(path)
            try:
                status = path.stat()
                stamp = status.st_ino, status.st_size, status.st_mtime_ns
                if known is not None and known[0] == stamp:
                    seen[path] = known
                else:
                    seen[path] = stamp, _parse(shown(path), read_bytes(path, _MOST_BYTES))
            except OSError as err:
                seen[path] = (0, 0, 0), _File(problem=str(err))
            problem = seen[path][1].problem
            if problem and (known is None or known[1].problem != problem):
                log.warning("a CDI file is passed over", extra={"why": problem})
        self._files = seen
        return (file for _, file in seen.values())

    def _paths(self) -> Iterator[Path]:
        for folder in reversed(self._folders):
            try:
                names = sorted(folder.iterdir())
            except FileNotFoundError:
                continue
            except OSError:
                names = []
            for path in names:
                if path.suffix in {".yaml", ".json"} and not path.name.startswith(FILE_PREFIX):
                    yield path

    def _other_driver(self, common: Mapping[str, Any]) -> str:
        """Return for which driver a file was made, and which is loaded; empty for the same."""
        mounts = [each for each in common.get("mounts") or () if isinstance(each, dict)]
        paths = (str(each.get("hostPath")) for each in mounts)
        made_for = {found[1] for path in paths if (found := _LIBRARY.search(path))}
        loaded = self._loaded()
        if not loaded or not made_for or loaded in made_for:
            return ""
        return f"driver {', '.join(sorted(made_for))}, and {loaded} is loaded"

    def _loaded(self) -> str:
        """Return the version of the loaded kernel module; empty where it is not known."""
        try:
            found = _MODULE.search(read_bytes(self._module, _MODULE_BYTES))
        except OSError:
            return ""
        return found[1].decode() if found is not None else ""

    def _missing(self, uuid: str, files: Iterable[_File]) -> str:
        names = [name for file in files for name in file.devices or ()]
        problems = [file.problem for file in files if file.problem]
        few = ", ".join(name[:80] for name in names[:4])
        found = f"{len(names)} others ({few})" if names else "none"
        return (
            f"--inject=cdi: no CDI device {KIND}={uuid} in "
            f"{', '.join(str(folder) for folder in self._folders)}: found {found}"
            f"{'; ' if problems else ''}{'; '.join(problems[:_SHOWN_PROBLEMS])}; "
            f"write the file on the node with `{COMMAND}`"
        )


def with_hook(edits: Edits, hook: Edits) -> Edits:
    """Return the edits with the hook that limits memory, which they may have already."""
    merged = {**edits.content, "hooks": [*edits.content.get("hooks", ())]}
    _merge(merged, hook.content)
    return Edits(max(edits.version, hook.version), merged)


def without_hook(edits: Edits) -> Edits:
    """Return the edits without the hook, which would obey the variables of a pod or an image."""
    hooks = edits.content.get("hooks")
    if not hooks:
        return edits
    kept = [each for each in hooks if not _limits(each)]
    return Edits(edits.version, {**edits.content, "hooks": kept})


def _limit_hook(edits: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next((each for each in edits.get("hooks") or () if _limits(each)), None)


def _limits(hook: Mapping[str, Any]) -> bool:
    args = hook.get("args")
    if not isinstance(args, list):
        return False
    return _LIMIT_HOOK in args and args[:-1].count(_GPU_ID) == 1


def _for_card(args: Sequence[str], card: Card) -> list[str]:
    at = args.index(_GPU_ID) + 1
    return [*args[:at], card.uuid, *args[at + 1 :]]


def _parse(path: str, content: bytes) -> _File:
    """Parse one file; a file of another kind than NVIDIA's has no devices.

    Any edits that are returned can be compared, merged and written as JSON.
    """
    try:
        if path.endswith(".json"):
            spec = msgspec.json.decode(content, type=_Spec)
        else:
            _check_yaml(content)
            spec = msgspec.yaml.decode(content, type=_Spec)
        if spec.kind != KIND:
            return _File()
        for each in (spec.container_edits or {}, *(d.container_edits for d in spec.devices)):
            msgspec.convert(each, _Checked)
            _check_depth(each)
            msgspec.json.encode(each)
    except Exception as err:  # noqa: BLE001 - PyYAML passes on any error of its types
        return _File(problem=f"{path} cannot be read: {str(err)[:200]}")
    version = parse_version(spec.cdi_version)
    if version is None:
        return _File(problem=f"{path} has cdiVersion {spec.cdi_version[:63]!r}")
    devices = {device.name: device.container_edits for device in spec.devices}
    return _File(version, spec.container_edits or {}, devices)


def _check_yaml(content: bytes) -> None:
    """Reject content that would crash or block the process when it is decoded or written.

    A few lines of aliases expand to billions of values, or to a value that contains itself.
    NVIDIA's files have none.
    """
    for depth, event in with_depth(content):
        line = event.start_mark.line + 1 if event.start_mark is not None else 1
        if depth > MAX_DEPTH:
            raise ValueError(f"line {line} is nested too deeply")
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"line {line} has an alias: write its value instead")  # noqa: TRY004 - not a matter of types
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > _MOST_CHARACTERS:
            raise ValueError(f"line {line} has a value of {len(event.value)} characters")


def _check_depth(value: object, depth: int = 0) -> None:
    if depth > MAX_DEPTH:
        raise ValueError("it is nested too deeply")
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            _check_depth(each, depth + 1)


def _check_number(card: Card, edits: Mapping[str, Any]) -> None:
    nodes = edits.get("deviceNodes") or ()
    paths = (str(node.get("hostPath") or node.get("path")) for node in nodes)
    numbers = {int(found[1]) for path in paths if (found := _CARD_NODE.search(path))}
    if numbers and card.minor == NO_MINOR:
        raise Refused(
            f"--inject=cdi: the driver does not report the number of GPU {card.uuid}, so the CDI "
            f"device {KIND}={card.uuid} cannot be checked: see the Event CardQueryFails of the node"
        )
    if numbers - {card.minor}:
        raise Refused(
            f"--inject=cdi: the CDI device {KIND}={card.uuid} opens "
            f"{', '.join(f'/dev/nvidia{number}' for number in sorted(numbers))}, and the driver "
            f"reports the GPU as /dev/nvidia{card.minor}: write the file again on the node with "
            f"`{COMMAND}`"
        )


def _merge(merged: dict[str, Any], edits: Mapping[str, Any]) -> None:
    for key, value in edits.items():
        if value is None:
            continue
        known = merged.setdefault(key, [] if isinstance(value, list) else value)
        if isinstance(known, list) and isinstance(value, list):
            known.extend(each for each in value if each not in known)
        elif known != value:
            raise Refused(f"--inject=cdi: the GPUs' CDI edits differ in {key} and cannot be merged")
