"""Read what pods used of their GPUs from the answer of a Prometheus query (pure).

The metric is DCGM_FI_DEV_FB_USED of NVIDIA's dcgm-exporter, in MiB, for example
max_over_time(DCGM_FI_DEV_FB_USED[7d]). Prometheus renames the exporter's labels namespace and pod
to exported_namespace and exported_pod if the scrape sets its own; older exporters write
pod_namespace and pod_name.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gpushare.errors import UNDECODABLE, SettingsError

_METRIC: Final = "DCGM_FI_DEV_FB_USED"
QUERY: Final = f"max_over_time({_METRIC}[7d])"
_LABELS: Final = (
    ("exported_namespace", "exported_pod"),
    ("namespace", "pod"),
    ("pod_namespace", "pod_name"),
)
_MOST_MIB: Final = 2**21  # more than any GPU has: a number of bytes


class _Series(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str] | None = None
    values: list[tuple[float, str]] = []


class _Data(msgspec.Struct, rename="camel"):
    result_type: str = ""
    result: Any = None


class _Answer(msgspec.Struct):
    """``error`` is Prometheus' own."""

    status: str = ""
    error: str = ""
    data: _Data | None = None


def read(name: str, content: bytes) -> dict[str, int]:
    """Return what each pod used of the GPU on which it used most, in MiB, by namespace and name.

    ``name`` is the file's. Raises SettingsError if it has no such answer, a series has no number
    or is of another metric, or none names a pod.
    """
    found: dict[str, int] = {}
    for series in _series(name, content):
        pod = _pod(series.metric)
        if not pod:
            continue  # a GPU without a pod, or of a process outside Kubernetes
        if (metric := series.metric.get("__name__", _METRIC)) != _METRIC:
            raise SettingsError(f"{name}: expected {_METRIC}, found {metric[:63]}")
        pairs = series.values or ([series.value] if series.value is not None else [])
        if not pairs:
            raise SettingsError(f"{name}: the series of pod {pod} has no value")
        most = max(_mib(name, pod, text) for _, text in pairs)
        found[pod] = max(found.get(pod, 0), most)
    if not found:
        raise SettingsError(
            f"{name}: no series names a pod, by labels such as exported_namespace and exported_pod:"
            " dcgm-exporter writes them if DCGM_EXPORTER_KUBERNETES is true"
        )
    return found


def is_answer(document: Mapping[str, Any]) -> bool:
    """Return whether a document is an answer of Prometheus and no Kubernetes object."""
    return "kind" not in document and {"status", "data"} <= document.keys()


def _series(name: str, content: bytes) -> list[_Series]:
    wanted = f"expected the JSON of Prometheus' /api/v1/query?query={QUERY}"
    try:
        if content.lstrip().startswith(b"["):  # as promtool query instant -o json prints it
            return msgspec.json.decode(content, type=list[_Series])
        answer = msgspec.json.decode(content, type=_Answer)
        if answer.error:
            raise SettingsError(f"{name}: Prometheus answered: {answer.error[:300]}")
        if answer.data is None or answer.data.result_type not in {"vector", "matrix"}:
            raise SettingsError(f"{name}: {wanted}, found no vector and no matrix")
        return msgspec.convert(answer.data.result, list[_Series])
    except (ValueError, *UNDECODABLE) as err:
        raise SettingsError(f"{name}: {wanted}: {err}") from err


def _pod(metric: dict[str, str]) -> str:
    """Return namespace and name of a series' pod; empty if it has none."""
    for namespace, pod in _LABELS:
        if metric.get(namespace) and metric.get(pod):
            return f"{metric[namespace]}/{metric[pod]}"
    return ""


def _mib(name: str, pod: str, text: str) -> int:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= _MOST_MIB:
        found = f"{name}: {pod} used {text[:40]!r}"
        raise SettingsError(f"{found}: expected MiB, as {_METRIC} is")
    return math.ceil(value)
