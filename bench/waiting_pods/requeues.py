"""Which writes make kube-scheduler try a rejected pod again."""

import asyncio
import itertools
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.apiserver import PODS
from bench.waiting_pods.forms import TEXT, every_name_failed, one_name
from bench.waiting_pods.recording import Answer, Decide
from bench.waiting_pods.setting import GATED, HIGH, Setting, plain_pod
from bench.world import node, node_name, pod
from gpushare.kube.client import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH

REPEATS: Final = 3
WATCHED_SECONDS: Final = 1.5
LOOP_SECONDS: Final = 5.0
REJECTED: Final = "rejected"
BOUND: Final = "bound"
OTHER: Final = "other"
_NODE: Final = f"/api/v1/nodes/{node_name(0)}"
_DEFAULT: Final = "/api/v1/namespaces/default"

Write = Callable[[Setting, int], Awaitable[object]]


@dataclass(frozen=True)
class Seen:
    """``delay`` is from the write to the extender's call, or to the attempt seen in metrics."""

    again: bool
    delay: float


def _patch(path: str, body: Any, kind: str = STRATEGIC_PATCH) -> Write:
    """Return a write of this patch, with ``$`` in its texts replaced by a number."""

    def filled(value: Any, number: int) -> Any:
        if isinstance(value, Mapping):
            return {key: filled(each, number) for key, each in value.items()}
        if isinstance(value, list):
            return [filled(each, number) for each in value]
        return value.replace("$", str(number)) if isinstance(value, str) else value

    async def write(setting: Setting, number: int) -> None:
        where = path.replace("$", str(number))
        await setting.api.request("PATCH", where, filled(body, number), content_type=kind)

    return write


def _post(path: str, make: Callable[[int], Mapping[str, Any]]) -> Write:
    async def write(setting: Setting, number: int) -> None:
        await setting.api.request("POST", path, make(number))

    return write


def _delete(path: str) -> Write:
    async def write(setting: Setting, number: int) -> None:
        where = path.replace("$", str(number))
        await setting.api.request("DELETE", where, {"gracePeriodSeconds": 0})

    return write


def _annotation(path: str) -> Write:
    return _patch(path, {"metadata": {"annotations": {"bench": "$"}}}, MERGE_PATCH)


def _label(path: str) -> Write:
    return _patch(path, {"metadata": {"labels": {"bench-label": "v$"}}}, MERGE_PATCH)


def _condition(path: str, kind: str = "bench/seen") -> Write:
    """Return a write of a condition of this type, whose message changes each time."""
    condition = {"type": kind, "status": "True", "reason": "Bench", "message": "$"}
    return _patch(f"{path}/status", {"status": {"conditions": [condition]}})


def _event(number: int) -> Mapping[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"bench-{number}", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": REJECTED},
        "reason": "Bench",
        "message": "nothing",
        "type": "Normal",
    }


def _claim(number: int) -> Mapping[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": f"bench-{number}"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


def _named(number: int) -> Mapping[str, Any]:
    return {"metadata": {"name": f"bench-{number}"}}


_POD: Final = f"{PODS}/{REJECTED}"
_BOUND: Final = f"{PODS}/{BOUND}"
_NODES: Final = "/api/v1/nodes"
_LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
_TOLERATION: Final = {
    "op": "add",
    "path": "/spec/tolerations/-",
    "value": {"key": "bench-$", "operator": "Exists"},
}
_TAINT: Final = {"key": "bench", "value": "$", "effect": "PreferNoSchedule"}

WRITES: Final[dict[str, Write]] = {
    "annotation of the pod": _annotation(_POD),
    "label of the pod": _label(_POD),
    "condition of another type in the pod's status": _condition(_POD),
    "patch of the pod's status that changes nothing": _patch(
        f"{_POD}/status", {"status": {"phase": "Pending"}}
    ),
    "toleration added to the pod": _patch(_POD, [_TOLERATION], JSON_PATCH),
    "annotation of a bound pod": _annotation(_BOUND),
    "label of a bound pod": _label(_BOUND),
    "condition in the status of a bound pod": _condition(_BOUND),
    "bound pod created": _post(PODS, lambda i: plain_pod(f"new-{i}", BOUND, nodeName=node_name(1))),
    "bound pod deleted": _delete(f"{PODS}/new-$"),
    "gated pod created": _post(PODS, lambda i: pod(f"gated-{i}", 4, OTHER, spec=GATED)),
    "annotation of a gated pod": _annotation(f"{PODS}/gated-$"),
    "gated pod deleted": _delete(f"{PODS}/gated-$"),
    "pod of another scheduler created": _post(
        PODS, lambda i: pod(f"foreign-{i}", 4, OTHER, spec={"schedulerName": "another"})
    ),
    "annotation of a node": _annotation(_NODE),
    "label of a node": _label(_NODE),
    "condition added to a node's status": _condition(_NODE, "bench/added-$"),
    "message of a node's condition": _condition(_NODE, "Ready"),
    "taint of a node": _patch(_NODE, {"spec": {"taints": [_TAINT]}}, MERGE_PATCH),
    "allocatable of a node raised": _patch(
        f"{_NODE}/status", {"status": {"allocatable": {"example.com/thing": "1$"}}}
    ),
    "node created": _post(_NODES, lambda i: node(f"extra-{i}", 1)),
    "node deleted": _delete(f"{_NODES}/extra-$"),
    "Event about the pod": _post(f"{_DEFAULT}/events", _event),
    "Lease created": _post(_LEASES, _named),
    "ConfigMap created": _post(f"{_DEFAULT}/configmaps", _named),
    "PersistentVolumeClaim created": _post(f"{_DEFAULT}/persistentvolumeclaims", _claim),
}


async def requeues(setting: Setting) -> None:
    """Print a table of writes, for a pod that the extender rejected and one that it never saw."""
    setting.extender.decide = one_name
    await setting.create([plain_pod(BOUND, BOUND, nodeName=node_name(0))])
    columns: list[Mapping[str, Sequence[Seen]]] = []
    numbers = itertools.count()
    whole_node = pod(REJECTED, 4, REJECTED)
    whole_node["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "65"
    for rejected in (pod(REJECTED, 4, REJECTED), whole_node):
        await setting.create([rejected])
        await setting.until_quiet()
        columns.append(await _all(setting, [next(numbers) for _ in range(REPEATS)]))
        for group in (REJECTED, OTHER):
            await setting.delete(group)
        await setting.until_quiet()
    print("\n| write | rejected by the extender: tried again, ms | rejected by kube-scheduler |")
    print("|---|---|---|")
    for title in WRITES:
        print(f"| {title} | {' | '.join(_cell(column[title]) for column in columns)} |")


async def _all(setting: Setting, numbers: Sequence[int]) -> Mapping[str, Sequence[Seen]]:
    found: dict[str, list[Seen]] = {}
    for title, write in WRITES.items():
        found[title] = [await _one(setting, write, number) for number in numbers]
        print(f"  {title}: {_cell(found[title])}", flush=True)
    return found


def _cell(found: Sequence[Seen]) -> str:
    again = [each.delay * 1000 for each in found if each.again]
    return f"{len(again)} of {len(found)}" + (f", {statistics.median(again):.0f}" if again else "")


async def _one(setting: Setting, write: Write, number: int) -> Seen:
    before = await setting.attempts()
    setting.extender.calls.clear()
    began = time.perf_counter()
    await write(setting, number)
    while (now := time.perf_counter()) - began < WATCHED_SECONDS:
        if calls := setting.extender.of("filter", REJECTED):
            break
        if await setting.attempts() > before:
            break
        await asyncio.sleep(0.02)
    calls = setting.extender.of("filter", REJECTED)
    again = bool(calls) or await setting.attempts() > before
    await setting.until_quiet(1.0)
    return Seen(again, (calls[0].began if calls else now) - began)


async def loops(setting: Setting) -> None:
    """Print how often kube-scheduler tries a pod by itself, for each form of the rejection."""
    number = itertools.count()

    def changing(asked: Sequence[str]) -> Answer:
        return Answer(unresolvable={asked[0]: f"{TEXT} {next(number)}"})

    cases: dict[str, tuple[Decide, dict[str, Any]]] = {
        "a fixed text": (one_name, {}),
        "a text that changes": (changing, {}),
        "FailedNodes, no pod has a lower priority": (every_name_failed, {}),
        "FailedNodes, pods on them have a lower priority": (
            every_name_failed,
            {"priorityClassName": HIGH},
        ),
    }
    print(
        f"\nattempts in {LOOP_SECONDS:g} s after the pod was created, {setting.shape.nodes} nodes"
    )
    for title, (decide, spec) in cases.items():
        setting.extender.decide = decide
        before = await setting.attempts()
        await setting.create([pod(REJECTED, 4, REJECTED, spec=spec)])
        await asyncio.sleep(LOOP_SECONDS)
        tried = await setting.attempts() - before
        print(f"  {title}: {tried:.0f}", flush=True)
        await setting.delete(REJECTED)
        await setting.until_quiet()
