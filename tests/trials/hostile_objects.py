"""Pods as large as an API server accepts, each in another part."""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from localcluster.errors import ApiError
from localcluster.workloads import RESOURCE

NAMESPACE: Final = "tenant"
PATH: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
_SMALLER: Final = 0.8
_LEAST: Final = 10
_RESOURCES_BYTES: Final = 4 * 1024  # of JSON, of one container: each by itself is small

Make = Callable[[int], dict[str, Any]]


def _pod(container: dict[str, Any] | None = None, **parts: Any) -> dict[str, Any]:
    metadata = parts.pop("metadata", {})
    main = {"name": "main", "image": "none", **(container or {})}
    spec = {"terminationGracePeriodSeconds": 0, "containers": [main], **parts}
    return {"metadata": metadata, "spec": spec}


def _annotation(size: int) -> dict[str, Any]:
    names = ",".join(f"GPU-{number:032}" for number in range(size // 37))
    return {"gpushare.aliyun.com/card-uuids-not": names}


def _affinity(count: int) -> dict[str, Any]:
    values = [f"value-{number:06}" for number in range(count)]
    term = {"matchExpressions": [{"key": "any", "operator": "NotIn", "values": values}]}
    required = {"nodeSelectorTerms": [term]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def _containers(count: int) -> list[dict[str, Any]]:
    return [{"name": f"c{number:05}", "image": "none"} for number in range(count)]


def _amounts() -> dict[str, Any]:
    """Return many amounts, and room for ours."""
    ours = {RESOURCE: "1"}
    entry = len('"x.example/000":"0",')
    room = _RESOURCES_BYTES - len(_compact({"limits": ours, "requests": ours}))
    amounts = {f"x.example/{number:03}": "0" for number in range(room // 2 // entry - 1)}
    return {"limits": amounts, "requests": amounts}


def _compact(described: dict[str, Any]) -> str:
    return json.dumps(described, separators=(",", ":"))


def _containers_with_amounts(count: int) -> list[dict[str, Any]]:
    amounts = _amounts()
    first, *others = [{**each, "resources": amounts} for each in _containers(count)]
    ours = {part: {**found, RESOURCE: "1"} for part, found in amounts.items()}
    return [{**first, "resources": ours}, *others]


def nested_fields(depth: int) -> list[dict[str, Any]]:
    """Return nested managed fields; their JSON needs an equal recursion limit."""
    fields: dict[str, Any] = {}
    for _ in range(depth):
        fields = {"f:y": fields}
    entry = {"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1"}
    return [{**entry, "fieldsV1": {"f:metadata": {"f:annotations": {"f:x": fields}}}}]


# Each kind with its first size, which is reduced until the API server accepts it.
KINDS: Final[dict[str, tuple[Make, int]]] = {
    "one variable of <": (
        lambda size: _pod({"env": [{"name": "X", "value": "<" * size}]}),
        1_560_000,
    ),
    "variables": (
        lambda count: _pod({"env": [{"name": f"E{number}"} for number in range(count)]}),
        60_000,
    ),
    "labels": (
        lambda count: _pod(metadata={"labels": {f"l{n:05}": "x" for n in range(count)}}),
        100_000,
    ),
    "annotations": (
        lambda count: _pod(metadata={"annotations": {f"a{n:05}": "x" for n in range(count)}}),
        36_000,
    ),
    "tolerations": (
        lambda count: _pod(
            tolerations=[{"key": f"t{number}", "operator": "Exists"} for number in range(count)]
        ),
        70_000,
    ),
    "containers": (lambda count: _pod(containers=_containers(count)), 20_000),
    "a wish": (lambda size: _pod(metadata={"annotations": _annotation(size)}), 256_000),
    "node affinity": (lambda count: _pod(affinity=_affinity(count)), 120_000),
    "node selector": (
        lambda count: _pod(nodeSelector={f"s{number:05}": "x" for number in range(count)}),
        100_000,
    ),
    "long names": (
        lambda count: _pod(
            containers=[{"name": f"{'c' * 58}{n:05}", "image": "none"} for n in range(count)]
        ),
        12_000,
    ),
    "amounts": (lambda count: _pod(containers=_containers_with_amounts(count)), 1_000),
    "nested fields": (lambda depth: _pod(metadata={"managedFields": nested_fields(depth)}), 3_000),
}


def asking(described: dict[str, Any], units: str) -> dict[str, Any]:
    """Return the same pod with GPU memory asked for in its first container."""
    first, *others = described["spec"]["containers"]
    amounts = first.get("resources", {"limits": {}})
    ours = {part: {**found, RESOURCE: units} for part, found in amounts.items()}
    first = {**first, "resources": ours}
    return {**described, "spec": {**described["spec"], "containers": [first, *others]}}


def largest(kind: str, create: Callable[[dict[str, Any]], None]) -> Iterator[int]:
    """Yield falling sizes until ``create`` succeeds with the last one."""
    make, size = KINDS[kind]
    while size >= _LEAST:
        yield size
        try:
            create(make(size))
        except ApiError:
            size = int(size * _SMALLER)
            continue
        return
