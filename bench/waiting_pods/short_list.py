"""Pods bound per second where eight nodes or a nominated one are released, and where any are."""

import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from bench.apiserver import PODS, ApiServer
from bench.scheduler import Mode
from bench.throughput import NONE, OURS, SCORED, Case, Pods, Row
from bench.waiting_pods.release import NAMES, release_patch
from bench.waiting_pods.setting import GATED
from bench.world import Shape, node_name, various
from gpushare.kube.client import STRATEGIC_PATCH

SHAPES: Final = {1000: Shape(1000, 1, 2), 5000: Shape(5000, 1, 2)}
PODS_A_CASE: Final = 300
_LISTED: Final = "short list"
_NOMINATED: Final = "nominated node"


def row(nodes: int) -> Row:
    """Return a row of ``bench.throughput`` with and without short lists.

    kube-scheduler's sample does not matter for short lists: it is never below 100 nodes.
    """
    pods = various(PODS_A_CASE)
    create = partial(create_released, nodes)
    cases: list[Case] = []
    for extender in (NONE, OURS):
        for percentage, text in SCORED:
            mode = Mode(f"{extender.name}, {text}", extender.extender, percentage)
            cases.append(Case(mode, pods))
        cases.append(Case(extender, pods, f"{extender.name}, {_LISTED}", create=create))
        nominate = partial(create_nominated, nodes)
        cases.append(Case(extender, pods, f"{extender.name}, {_NOMINATED}", create=nominate))
    return Row(f"{PODS_A_CASE} pods", SHAPES[nodes], cases)


async def create_released(nodes: int, api: ApiServer, pods: Pods) -> None:
    """Create gated pods, and release each to its own eight nodes."""
    gated = [{**each, "spec": {**each["spec"], **GATED}} for each in pods]
    await api.each("POST", PODS, gated)
    patches = [
        {
            "metadata": {"name": each["metadata"]["name"]},
            **release_patch([node_name((number * NAMES + i) % nodes) for i in range(NAMES)]),
        }
        for number, each in enumerate(pods)
    ]
    await api.each("PATCH", _path, patches, content_type=STRATEGIC_PATCH)


async def create_nominated(nodes: int, api: ApiServer, pods: Pods) -> None:
    """Create gated pods, nominate a node of its own for each, and release it."""
    gated = [{**each, "spec": {**each["spec"], **GATED}} for each in pods]
    await api.each("POST", PODS, gated)
    every = nodes // PODS_A_CASE  # as slots are: each pod fits on its node
    nominated = [
        {
            "metadata": each["metadata"],
            "status": {"nominatedNodeName": node_name(number * every)},
        }
        for number, each in enumerate(pods)
    ]
    await api.each("PATCH", _status_path, nominated, content_type=STRATEGIC_PATCH)
    patches = [
        {"metadata": {"name": each["metadata"]["name"]}, **release_patch([])} for each in pods
    ]
    await api.each("PATCH", _path, patches, content_type=STRATEGIC_PATCH)


def _status_path(body: Mapping[str, Any]) -> str:
    return f"{PODS}/{body['metadata']['name']}/status"


def _path(body: Mapping[str, Any]) -> str:
    return f"{PODS}/{body['metadata']['name']}"


def verdict(found: Row) -> str:
    """Return the ratios of the rates with short lists to those without an extender."""
    lines: list[str] = []
    for extender, (_, text) in itertools.product((NONE, OURS), SCORED):
        title, floor = f"{extender.name}, {_LISTED}", f"{NONE.name}, {text}"
        ratio = found.middle(title, "rate") / found.middle(floor, "rate")
        pairs = zip(found.results[title], found.results[floor], strict=True)
        rounds = " ".join(f"{one.rate / other.rate:.2f}" for one, other in pairs)
        lines.append(f"{title}: {ratio:.2f} x the pods/s of {floor} (rounds: {rounds})")
    return "\n".join(lines)
