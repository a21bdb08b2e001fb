"""Read HAMi's annotations: a node's GPUs, and what a pod got of which (pure).

HAMi's docs/develop/protocol.md describes them. Memory is in MiB.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from gpushare.errors import UNDECODABLE, RecordError
from gpushare.objects.model import Pod

REGISTER: Final = "hami.io/node-nvidia-register"
HANDSHAKE: Final = "hami.io/node-handshake"
DELETED: Final = "Deleted"  # with a time: HAMi's device plugin has not answered
ALLOCATED: Final = "hami.io/vgpu-devices-allocated"
RESOURCE_MEMORY: Final = "nvidia.com/gpumem"
RESOURCES: Final = (RESOURCE_MEMORY, "nvidia.com/gpumem-percentage", "nvidia.com/gpucores")
MIG: Final = "mig"
MAX_MIB: Final = 2**31
_MAX_TEXT: Final = 2**18  # the API server's limit of all annotations of an object
_WHOLE: Final = 100  # percent of a GPU's cores: no other pod may use the GPU
_FIELDS: Final = (7, 9)  # of a GPU in the older format


class Gpu(msgspec.Struct, frozen=True):
    """``count`` pods may share the GPU."""

    id: str
    devmem: int
    count: int = 0
    index: int = 0
    type: str = ""
    mode: str = ""
    health: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """What a pod has of a GPU; ``is_whole`` if no other pod may use it."""

    mib: int
    is_whole: bool = False


def gpus(text: str) -> list[Gpu]:
    """Return the GPUs that HAMi registered on a node; RecordError if they cannot be read."""
    try:
        found = _registered(text)
    except (ValueError, *UNDECODABLE) as err:
        raise RecordError(f"annotation {REGISTER} cannot be read: {_shown(text)}: {err}") from err
    return sorted(found, key=lambda gpu: (gpu.index, gpu.id))


def _registered(text: str) -> list[Gpu]:
    if len(text) > _MAX_TEXT:
        raise ValueError("it is too long")
    if text.lstrip().startswith("["):
        found = msgspec.json.decode(text, type=list[Gpu])
    else:
        found = [_older(each) for each in text.split(":") if each.strip()]
    if any(not gpu.id or not 0 < gpu.devmem <= MAX_MIB or gpu.index < 0 for gpu in found):
        raise ValueError("a GPU has no name, or impossible numbers")
    if len({gpu.id for gpu in found}) < len(found):
        raise ValueError("a GPU is listed twice")
    return found


def _older(text: str) -> Gpu:
    parts = text.split(",")
    if len(parts) not in _FIELDS or parts[6].lower() not in {"true", "false"}:
        raise ValueError(f"{text[:60]!r} is not a GPU")
    newer = len(parts) == _FIELDS[1]
    return Gpu(
        id=parts[0],
        count=_number(parts[1]),
        devmem=_number(parts[2]),
        type=parts[4],
        health=parts[6].lower() == "true",
        index=_number(parts[7]) if newer else 0,
        mode=parts[8] if newer else "",
    )


def parts_of(pod: Pod) -> Mapping[str, Part]:
    """Return what a bound pod has of which GPU; RecordError if its annotation cannot be read.

    The annotation lists containers in the order init, then others. An init container that is no
    sidecar has ended before the others run.
    """
    text = pod.annotations.get(ALLOCATED)
    if text is None:
        raise RecordError(f"annotation {ALLOCATED} is missing")
    try:
        containers = [_container(each) for each in text[:_MAX_TEXT].removesuffix(";").split(";")]
    except ValueError as err:
        raise RecordError(f"annotation {ALLOCATED} cannot be read: {_shown(text)}: {err}") from err
    inits = pod.init_containers
    has_inits = len(containers) == len(inits) + len(pod.containers)
    at_start: dict[str, int] = {}
    running: dict[str, int] = {}
    whole: set[str] = set()
    for number, container in enumerate(containers):
        ends = has_inits and number < len(inits) and not inits[number].is_sidecar
        for uuid, part in container:
            if ends:
                at_start[uuid] = max(at_start.get(uuid, 0), part.mib)
            else:
                running[uuid] = running.get(uuid, 0) + part.mib
            if part.is_whole:
                whole.add(uuid)
    if not at_start and not running:
        raise RecordError(f"annotation {ALLOCATED} names no GPU: {_shown(text)}")
    return {
        uuid: Part(max(at_start.get(uuid, 0), running.get(uuid, 0)), uuid in whole)
        for uuid in sorted({*at_start, *running})
    }


def is_mig(uuid: str) -> bool:
    """Return whether a pod has a MIG instance of the GPU: it follows the UUID in brackets."""
    return uuid.endswith("]")


def _container(text: str) -> list[tuple[str, Part]]:
    found = []
    for each in text.split(":"):
        if not each.strip():
            continue
        fields = each.split(",")
        if len(fields) < 4 or not fields[0]:  # noqa: PLR2004 - UUID, type, memory, cores
            raise ValueError(f"{each[:60]!r} is not a GPU")
        found.append((fields[0], Part(_number(fields[2]), _number(fields[3]) >= _WHOLE)))
    return found


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10) or int(text) > MAX_MIB:  # noqa: PLR2004 - digits of MAX_MIB
        raise ValueError(f"{text[:20]!r} is not an amount")
    return int(text)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:80]}...")  # noqa: PLR2004 - one line
