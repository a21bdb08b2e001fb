"""Find resource and annotation names in a pod that are mistyped or of other products (pure)."""

import difflib
from collections.abc import Callable, Iterator
from typing import Final

from gpushare.cards import placement_policy
from gpushare.contract import LABEL_CARD_COUNT, RESOURCE_COUNT, RESOURCE_MEMORY
from gpushare.errors import QuantityError
from gpushare.objects.model import Container, Pod
from gpushare.objects.quantity import parse_units
from gpushare.text.amounts import MIB_PER_GIB

MOST: Final = 3  # suggestions for one pod
_MOST_NAMES: Final = 64  # that are looked at: a user chooses how many a pod has
_LONGEST: Final = 100
_NEAR: Final = 0.7
_MOST_MIB: Final = 2**21  # more than any GPU has: a number of bytes, such as 8Gi
_MOST_GPUS: Final = 64  # of one node
_COUNTS: Final = frozenset({"nvidia.com/gpu", "volcano.sh/vgpu-number"})
_Text = Callable[[str, str | int, int], str]  # of a resource, its amount and the number of GPUs
_OURS: Final = "gpushare.aliyun.com/"
# Names that Aliyun's own products use, so no typing errors.
_RIGHT: Final = frozenset({RESOURCE_MEMORY, RESOURCE_COUNT, "aliyun.com/gpu-core.percentage"})


def hint(pod: Pod) -> str:
    """Return the suggestions as text to append to a sentence; empty if there are none."""
    found = "; ".join(suggestions(pod))
    return f". {found}" if found else ""


def suggestions(pod: Pod) -> tuple[str, ...]:
    """Return at most ``MOST`` suggestions for the pod's resource names and annotations."""
    found: dict[str, None] = {}
    for text in (*_of_resources(pod), *_of_annotations(pod)):
        found[text] = None
    # HAMi's and Volcano's pods request whole GPUs too, and mean their number.
    texts = [text for text in found if not text.endswith(_WHOLE)] or list(found)
    return tuple(texts[:MOST])


def _of_resources(pod: Pod) -> Iterator[str]:
    left = _MOST_NAMES
    for container in pod.all_containers:
        for name, amount in container.amounts.items():
            if not left:
                return
            left -= 1
            text = suggestion(name, amount, gpus=_gpus(container))
            if text:
                yield text


def suggestion(name: str, amount: str | int = "", *, gpus: int = 1) -> str:
    """Return what to write instead of a resource name; empty if it is not for GPU memory.

    ``gpus``: of so many GPUs the container requests the amount.
    """
    known = _OTHERS.get(name)
    if known is not None:
        return known(name, amount, gpus)
    if name.startswith("nvidia.com/mig-"):
        return f"{name} is a MIG device: gpushare shares whole GPUs, by {RESOURCE_MEMORY}"
    if name in _RIGHT or len(name) > _LONGEST:
        return ""
    plain = name.lower().replace("_", "-")
    if "gpu" not in plain or "mem" not in plain:
        return ""
    domain, _, part = plain.rpartition("/")
    ours, _, memory = RESOURCE_MEMORY.partition("/")
    is_ours = part == memory or ((not domain or _near(domain, ours)) and _near(part, memory))
    return f"{name}: did you mean {RESOURCE_MEMORY}?" if is_ours else ""


def _near(one: str, two: str) -> bool:
    return difflib.SequenceMatcher(None, one, two).ratio() >= _NEAR


def _of_annotations(pod: Pod) -> Iterator[str]:
    for name in list(pod.annotations)[:_MOST_NAMES]:
        text = annotation_suggestion(name)
        if text:
            yield text


def annotation_suggestion(name: str) -> str:
    """Return the annotation that a mistyped one was probably meant to be; empty if unknown."""
    if not name.startswith(_OURS) or name in placement_policy.ANNOTATIONS or len(name) > _LONGEST:
        return ""
    near = difflib.get_close_matches(name, placement_policy.ANNOTATIONS, 1, 0.9)
    return f"{name}: did you mean {near[0]}?" if near else ""


def _gpus(container: Container) -> int:
    counts = (_known(amount) for name, amount in container.amounts.items() if name in _COUNTS)
    return max(counts, default=1) or 1


def _known(amount: str | int) -> int:
    """Return an amount; 0 if it cannot be read."""
    try:
        return parse_units(amount)
    except QuantityError:
        return 0


def _in_mib(product: str) -> _Text:
    def text(name: str, amount: str | int, gpus: int) -> str:
        mib = _known(amount)
        shown = f"{name}: {amount}" if mib else name
        is_other = f"{shown} is {product}'s, in MiB; here"
        if not 0 < mib <= _MOST_MIB or gpus > _MOST_GPUS:
            return f"{is_other} it is {RESOURCE_MEMORY}"
        gib = -(-mib // MIB_PER_GIB)
        if gpus == 1:
            return f"{is_other} request {gib} GiB as {RESOURCE_MEMORY}"
        return (
            f"{is_other} request {gib * gpus} GiB as {RESOURCE_MEMORY}, "
            f'with the label {LABEL_CARD_COUNT}: "{gpus}"'
        )

    return text


def _other(what: str) -> _Text:
    return lambda name, _, __: f"{name} {what}"


_WHOLE: Final = f"requests a whole GPU or a replica of one: a share is {RESOURCE_MEMORY}"
_OTHERS: Final[dict[str, _Text]] = {
    "nvidia.com/gpumem": _in_mib("HAMi"),
    "volcano.sh/vgpu-memory": _in_mib("Volcano"),
    "nvidia.com/gpumem-percentage": _other(
        f"is HAMi's: here the amount itself is requested, as {RESOURCE_MEMORY}"
    ),
    "nvidia.com/gpucores": _other("is HAMi's: gpushare does not limit computing time"),
    "volcano.sh/vgpu-cores": _other("is Volcano's: gpushare does not limit computing time"),
    "volcano.sh/vgpu-number": _other(f"is Volcano's: here a share is {RESOURCE_MEMORY}"),
    "nvidia.com/gpu": _other(_WHOLE),
    "nvidia.com/gpu.shared": _other(_WHOLE),
}
