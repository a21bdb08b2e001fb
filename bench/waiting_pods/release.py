"""The patch that releases a gated pod to a few nodes."""

import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.waiting_pods.recording import Answer
from bench.waiting_pods.setting import GATE, GATED, Setting, waiting_pods
from bench.world import node_name, pod

NAMES: Final = 8
TRIALS: Final = 30
GROUP: Final = "released"
_SELECTOR: Final = {"gpushare": "true"}  # on every node


def affinity(terms: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": list(terms)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def named(*names: str) -> dict[str, Any]:
    return {"key": "metadata.name", "operator": "In", "values": list(names)}


def release_patch(names: Sequence[str], selector: Mapping[str, str] | None = None) -> Any:
    """Return the patch that removes the gate and limits a pod to these nodes, with one term each.

    The API server accepts only one value for a node's name.
    """
    spec: dict[str, Any] = {"schedulingGates": [{"$patch": "delete", "name": GATE}]}
    if names:
        spec["affinity"] = affinity([{"matchFields": [named(name)]} for name in names])
    if selector:
        spec["nodeSelector"] = dict(selector)
    return {"spec": spec}


async def accepted(setting: Setting) -> None:
    """Print which forms of a short list the API server accepts for a gated pod."""
    eight = [node_name(number) for number in range(NAMES)]
    have = {"key": "gpushare", "operator": "In", "values": ["true"]}
    other = {"key": "gpushare", "operator": "Exists"}
    by_label = {"key": "kubernetes.io/hostname", "operator": "In", "values": eight}
    eight_terms = [{"matchFields": [named(name)]} for name in eight]
    cases: dict[str, tuple[Sequence[Any], Sequence[Any]]] = {
        "no term before, one term with 8 names": ((), [{"matchFields": [named(*eight)]}]),
        "no term before, 8 terms with a name each": ((), eight_terms),
        "1 term before, 8 terms that begin with it": (
            [{"matchExpressions": [have]}],
            [{"matchExpressions": [have], **each} for each in eight_terms],
        ),
        "1 term before, one name added to it": (
            [{"matchExpressions": [have]}],
            [{"matchExpressions": [have], "matchFields": [named(eight[0])]}],
        ),
        "2 terms before, one name added to each": (
            [{"matchExpressions": [have]}, {"matchExpressions": [other]}],
            [
                {"matchExpressions": [have], "matchFields": [named(eight[0])]},
                {"matchExpressions": [other], "matchFields": [named(eight[1])]},
            ],
        ),
        "1 term before, 8 host names added to it": (
            [{"matchExpressions": [have]}],
            [{"matchExpressions": [have, by_label]}],
        ),
    }
    print("\n| required node affinity of a gated pod | the API server |\n|---|---|")
    for number, (title, (before, after)) in enumerate(cases.items()):
        name = f"terms-{number}"
        spec = GATED | ({"affinity": affinity(before)} if before else {})
        await setting.create([pod(name, 4, "terms", spec=spec)])
        gates = {"schedulingGates": [{"$patch": "delete", "name": GATE}]}
        body = {"spec": gates | {"affinity": affinity(after)}}
        print(f"| {title} | {await _answer(setting, name, body)} |")
    await setting.create([pod("uid", 4, "terms", spec=GATED)])
    body = release_patch(eight) | {"metadata": {"uid": "0b7e7f9e-0000-4000-8000-000000000000"}}
    print(f"| with a wrong uid | {await _answer(setting, 'uid', body)} |", flush=True)
    await setting.delete("terms")


async def _answer(setting: Setting, name: str, body: Any) -> str:
    try:
        await setting.patch(name, body)
    except RuntimeError as err:
        return str(err).partition(": ")[2].replace("|", "/")[:330]
    return "accepted"


async def delay(setting: Setting) -> None:
    """Print the time from the patch until kube-scheduler calls filter."""
    setting.extender.decide = lambda asked: Answer(asked[:1])
    setting.extender.keep_nodes = True
    setting.extender.calls.clear()
    await setting.create(waiting_pods(GROUP, TRIALS, **GATED))
    await setting.until_quiet()
    assert not setting.extender.of("filter"), "kube-scheduler asked about a gated pod"
    after_sent: list[float] = []
    after_answer: list[float] = []
    for number in range(TRIALS):
        name = f"{GROUP}-{number}"
        names = [node_name((number * NAMES + i) % setting.shape.nodes) for i in range(NAMES)]
        sent = time.perf_counter()
        await setting.patch(name, release_patch(names, _SELECTOR))
        answered = time.perf_counter()
        await setting.until("filter", lambda: bool(setting.extender.of("filter", name)))  # noqa: B023
        (call,) = setting.extender.of("filter", name)
        assert set(call.nodes) == set(names), (call.nodes, names)
        after_sent.append((call.began - sent) * 1000)
        after_answer.append((call.began - answered) * 1000)
        await asyncio.sleep(0.1)
    await setting.delete(GROUP)
    print(f"\n{setting.shape.nodes} nodes: ms until filter is called about the {NAMES} nodes")
    for title, found in (("sending the patch", after_sent), ("its answer", after_answer)):
        print(f"  after {title}: median {statistics.median(found):.1f}, most {max(found):.1f}")
