"""Find the resource amounts for which the API server refuses a pod (pure).

The rules are those of Kubernetes' ValidateResourceRequirements (pkg/apis/core/validation).
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Final

from gpushare.annotations import mistaken_names
from gpushare.errors import QuantityError
from gpushare.objects.model import Container, Pod
from gpushare.objects.quantity import parse_quantity
from gpusharectl.manifests.kubernetes_keys import Path

_STANDARD: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_HUGE: Final = "hugepages-"
_NATIVE: Final = ".kubernetes.io"


def refused(pod: Pod) -> Iterator[tuple[Path, str]]:
    """Yield each place below ``spec`` that the API server refuses, and why."""
    lists = {"initContainers": pod.init_containers, "containers": pod.containers}
    for key, containers in lists.items():
        for number, container in enumerate(containers):
            for place, text in _of_container(container):
                yield (key, number, "resources", *place), f"container {container.name}: {text}"


def _of_container(container: Container) -> Iterator[tuple[Path, str]]:
    limits, requests = container.limits, container.requests
    for key, amounts in (("limits", limits), ("requests", requests)):
        for name, text in amounts.items():
            why = _why_not(name, text)
            if why:
                yield (key, name), f"Kubernetes refuses {text!r:.60}: {why}"
    for name, text in requests.items():
        why = _why_not_both(name, text, limits)
        if why:
            yield ("requests", name), f"Kubernetes refuses {text!r:.60}: {why}"


def _why_not(name: str, text: str | int) -> str:
    if "/" not in name and name not in _STANDARD and not name.startswith(_HUGE):
        meant = mistaken_names.suggestion(name)
        return "must be a standard resource for containers" + (f". {meant}" if meant else "")
    amount = _amount(text)
    if amount is None:
        return "not a quantity: write a whole number"
    if amount < 0:
        return "must be greater than or equal to 0"
    if _is_extended(name) and amount.denominator != 1:
        whole = -(-amount.numerator // amount.denominator)
        return f"must be an integer: write {name}: {whole}"
    return ""


def _why_not_both(name: str, text: str | int, limits: Mapping[str, str | int]) -> str:
    is_exact = _is_extended(name) or name.startswith(_HUGE)
    if name not in limits:
        if not is_exact:
            return ""
        return (
            f"Limit must be set for non overcommitable resources: write limits: {{{name}: {text}}}"
        )
    asked, limit = _amount(text), _amount(limits[name])
    if asked is None or limit is None:
        return ""
    if is_exact and asked != limit:
        return (
            f"must be equal to {name} limit of {limits[name]}: write only limits, "
            "and the request is the same"
        )
    if asked > limit:
        return f"must be less than or equal to {name} limit of {limits[name]}"
    return ""


def _is_extended(name: str) -> bool:
    domain, slash, _ = name.partition("/")
    return bool(slash) and domain != _NATIVE[1:] and not domain.endswith(_NATIVE)


def _amount(text: str | int) -> Fraction | int | None:
    try:
        return parse_quantity(text)
    except QuantityError:
        return None
