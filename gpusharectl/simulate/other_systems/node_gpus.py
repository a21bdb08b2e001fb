"""Read a node's GPUs as NVIDIA's device plugin, its feature discovery, clouds and HAMi state them.

NVIDIA's labels: https://github.com/NVIDIA/k8s-device-plugin/tree/main/docs/gpu-feature-discovery.
nvidia.com/gpu.count is the number of GPUs, not of replicas; nvidia.com/gpu.memory is in MiB. (pure)
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from gpushare.cards.model import Card, Health, Inventory
from gpushare.errors import QuantityError, RecordError
from gpushare.objects.model import Node
from gpushare.objects.quantity import parse_units
from gpushare.text.counted import counted
from gpushare.text.listed import listed
from gpusharectl.simulate.other_systems import gpu_models, hami

RESOURCE: Final = "nvidia.com/gpu"
RENAMED: Final = "nvidia.com/gpu.shared"
RESOURCES: Final = (RESOURCE, RENAMED)
MIG: Final = "nvidia.com/mig-"
MAX_GPUS: Final = 64  # of one node
MAX_REPLICAS: Final = 256
_DIGITS: Final = 9  # of a label's number: far more than any has
_LABEL: Final = "nvidia.com/gpu."
_GKE: Final = "cloud.google.com/gke-"
_NO_GPU: Final = frozenset({RESOURCE, RENAMED, *hami.RESOURCES})


class Sharing(StrEnum):
    """How pods share the GPUs of a node today."""

    WHOLE = "whole GPUs"
    TIME_SLICING = "time-slicing"
    MPS = "MPS"
    HAMI = "HAMi"


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """``replicas``: so many pods can request each GPU; of HAMi's ``most_pods``, by UUID."""

    inventory: Inventory
    sharing: Sharing
    replicas: int = 1
    most_pods: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Note:
    """``text`` says what is not understood or assumed, ``fix`` what to do."""

    text: str
    fix: str = ""


@dataclass(slots=True)
class Found:
    """``gpus`` is None if the node has none, or they are unknown: then ``notes`` say why."""

    gpus: NodeGpus | None = None
    notes: list[Note] = field(default_factory=list)


def read(node: Node, unit_mib: int) -> Found:
    """Return the GPUs of a node that does not share them by memory yet."""
    found = Found()
    try:
        found.gpus = _read(node, unit_mib, found.notes)
    except (RecordError, QuantityError) as err:
        found.notes.append(Note(f"GPUs cannot be read: {err}"))
    return found


def other_gpus(node: Node) -> Note | None:
    """Name the node's GPUs, or parts of them, that are not simulated."""
    others = [name for name in node.capacity if is_other_gpu(name) and node.capacity[name] != "0"]
    return Note(f"not simulated: {few(others)}") if others else None


def given(node: Node, stock: Inventory) -> NodeGpus | None:
    """Return GPUs that a file states for a node with nvidia.com/gpu; None without any."""
    try:
        offered = _offered(node)
    except QuantityError:
        return None
    if not offered:
        return None
    replicas = max(1, offered // len(stock.cards))
    return NodeGpus(stock, Sharing.TIME_SLICING if replicas > 1 else Sharing.WHOLE, replicas)


def is_other_gpu(resource: str) -> bool:
    """Return whether a resource is a GPU, or a part of one, that is not simulated."""
    domain, _, name = resource.partition("/")
    if resource in _NO_GPU or not name or domain == "aliyun.com":
        return False
    # NVIDIA's names of a virtual machine's GPUs are those of models, such as GA102GL_A10.
    is_gpu = domain == "nvidia.com" or "gpu" in resource.lower()
    return is_gpu and not domain.endswith("kubernetes.io")


def _read(node: Node, unit_mib: int, notes: list[Note]) -> NodeGpus | None:
    registered = node.annotations.get(hami.REGISTER)
    is_deleted = node.annotations.get(hami.HANDSHAKE, "").startswith(hami.DELETED)
    if registered is not None and not is_deleted:
        return _of_hami(node, hami.gpus(registered), unit_mib, notes)
    offered, product = _offered(node), node.labels.get(f"{_LABEL}product", "")
    if not offered:
        named = _number(node, f"{_LABEL}count") or gpu_models.is_named(node)
        if named and other_gpus(node) is None:
            notes.append(
                Note(
                    f"GPUs by its labels, but no {RESOURCE}",
                    "Is NVIDIA's device plugin not ready, or do claims (DRA) allocate the GPUs?",
                )
            )
        return None
    if "-MIG-" in f"{product}-" or f"{_GKE}gpu-partition-size" in node.labels:
        notes.append(Note(f"MIG devices as {RESOURCE} are not simulated"))
        return None
    by_cloud = gpu_models.by_cloud(node)
    sharing, replicas, count = _counted(node, offered, by_cloud.gpus, notes)
    memory = _number(node, f"{_LABEL}memory")
    if not memory:
        if not by_cloud.model:
            text = f"{RESOURCE} without a label {_LABEL}memory"
            notes.append(Note(text, _fix(node, count)))
            return None
        product, memory = product or by_cloud.model, by_cloud.mib
        notes.append(Note(f"GPUs are assumed to be {by_cloud.model}, by a label of the cloud"))
    healthy = -(-_amount(node.allocatable) // replicas)
    if healthy < count:
        text = f"{count - healthy} of {count} GPUs unhealthy: assumed to be the last"
        notes.append(Note(text))
    model = product.removesuffix("-SHARED")
    cards = (
        Card(
            index=index,
            uuid=f"GPU-{node.name}-{index}",
            units=memory // unit_mib,
            health=_health(index < healthy),
            minor=index,
            model=model,
            memory_mib=memory,
        )
        for index in range(count)
    )
    return NodeGpus(_stock(cards, unit_mib), sharing, replicas)


def _counted(
    node: Node, offered: int, of_machine: int, notes: list[Note]
) -> tuple[Sharing, int, int]:
    """Return how the GPUs are shared, the replicas of each, and how many GPUs there are."""
    sharing, replicas = _sharing(node)
    labelled = _number(node, f"{_LABEL}count")
    known = labelled or of_machine
    if replicas == 1 and known and offered > known and not offered % known:
        sharing, replicas = Sharing.TIME_SLICING, offered // known
        by = f"label {_LABEL}count" if labelled else "machine type"
        text = f"{offered} {RESOURCE}, but {counted(known, 'GPU')} by {by}: time-slicing is assumed"
        notes.append(Note(text))
    count = -(-offered // replicas)
    if replicas > MAX_REPLICAS:
        raise RecordError(f"{replicas} replicas of a GPU are more than any pod could share")
    if count > MAX_GPUS:
        raise RecordError(
            f"{RESOURCE}: {offered} with {counted(replicas, 'replica')} of each GPU is more than "
            "any machine has"
        )
    if labelled and labelled != count and not any(name.startswith(MIG) for name in node.capacity):
        text = f"{RESOURCE} says {counted(count, 'GPU')}, label {_LABEL}count {labelled}"
        notes.append(Note(f"{text}: {count} assumed"))
    return sharing, replicas, count


def _of_hami(node: Node, gpus: list[hami.Gpu], unit_mib: int, notes: list[Note]) -> NodeGpus | None:
    physical = _number(node, f"{_LABEL}memory")
    if not gpus:
        notes.append(Note("HAMi has registered no GPU"))
    usable = [gpu for gpu in gpus[:MAX_GPUS] if gpu.mode != hami.MIG]
    cards = [
        Card(
            index=index,
            uuid=gpu.id,
            units=min(gpu.devmem, physical or gpu.devmem) // unit_mib,
            health=_health(gpu.health),
            minor=index,
            model=gpu.type.removeprefix("NVIDIA-"),  # HAMi puts the vendor before the name
            memory_mib=min(gpu.devmem, physical or gpu.devmem),
        )
        for index, gpu in enumerate(usable)
    ]
    if any(gpu.mode == hami.MIG for gpu in gpus) or len(gpus) > MAX_GPUS:
        text = f"HAMi's GPUs in MIG mode, or more than {MAX_GPUS}, are not simulated"
        notes.append(Note(text))
    if physical and any(gpu.devmem > physical for gpu in gpus):
        notes.append(Note("HAMi offers more memory than the GPUs have: the rest is not counted"))
    most_pods = {gpu.id: gpu.count for gpu in usable}
    stock = _stock(cards, unit_mib)
    return NodeGpus(stock, Sharing.HAMI, most_pods=most_pods) if cards else None


def _sharing(node: Node) -> tuple[Sharing, int]:
    """Return how GPUs are shared, and how many pods can request each."""
    replicas = _number(node, f"{_LABEL}replicas") or 1
    strategy = node.labels.get(f"{_LABEL}sharing-strategy", "")
    if replicas == 1:
        replicas = _number(node, f"{_GKE}max-shared-clients-per-gpu") or 1
        strategy = node.labels.get(f"{_GKE}gpu-sharing-strategy", "")
    if replicas == 1:
        return Sharing.WHOLE, 1
    return (Sharing.MPS if strategy == "mps" else Sharing.TIME_SLICING), replicas


def _offered(node: Node) -> int:
    return _amount(node.capacity)


def _amount(amounts: dict[str, str | int]) -> int:
    return sum(parse_units(amounts.get(name, 0)) for name in RESOURCES)


def _number(node: Node, key: str) -> int:
    """Return a label's number, 0 if the label is missing; RecordError if it is wrong."""
    text = node.labels.get(key)
    if text is None:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        wanted = f"a whole number of at most {_DIGITS} digits"
        raise RecordError(f"label {key} is {text[:63]!r}: expected {wanted}")
    return int(text)


def _health(is_healthy: bool) -> Health:
    return Health.HEALTHY if is_healthy else Health.UNHEALTHY


def _stock(cards: Iterable[Card], unit_mib: int) -> Inventory:
    return Inventory(unit_mib, tuple(cards), plugin="simulated", binding="late")


def _fix(node: Node, count: int) -> str:
    return (
        f"To count them as {counted(count, 'GPU')} of 80 units, for example, add a file with "
        f"{{kind: Node, metadata: {{name: {node.name}}}, gpus: {count} x 80}}"
    )


def few(names: list[str]) -> str:
    """List names, each with at most the characters that a label may have."""
    return listed([name[:63] for name in sorted(names)])
