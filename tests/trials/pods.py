"""The pods of the trials: their amounts are equal, so that only identity differs."""

from typing import Any

from localcluster.workloads import container, pod

REFUSED = "trial.local/refused"
GATE = "trial/one-by-one"
_WITHOUT_CARD = {"NVIDIA_VISIBLE_DEVICES": "void"}
_BRIEF = {"WORKLOAD_RUN_SECONDS": "0.3"}


def single(name: str, units: int, *, node: str = "", **spec: Any) -> dict[str, Any]:
    """Describe a pod with one container of ``units``."""
    return pod(name, units, node=node, **_quick(spec))


def several(
    name: str, units: int, cards: int = 1, *, node: str = "", **spec: Any
) -> dict[str, Any]:
    """Describe a pod with two init containers, of which one stays, and two containers.

    With ``cards`` above 1 amounts are spread over cards, and a third container asks for nothing.
    """
    containers = [container("a", units), container("b", 2 * units)]
    if cards > 1:
        containers.insert(1, container("none", None, _WITHOUT_CARD))
    stays = container("stays", units) | {"restartPolicy": "Always"}
    return pod(
        name,
        node=node,
        metadata={"labels": {"aliyun.com/gpu-count": str(cards)}} if cards > 1 else None,
        containers=containers,
        initContainers=[container("first", units, _BRIEF), stays],
        **_quick(spec),
    )


def midway(name: str, units: int, *, node: str = "") -> dict[str, Any]:
    """Describe a pod that gets devices for one container and is rejected for the other."""
    refused = container("refused", None, _WITHOUT_CARD) | {"resources": {"limits": {REFUSED: "1"}}}
    return pod(name, node=node, containers=[container("main", units), refused], **_quick({}))


def beyond(name: str, units: int) -> dict[str, Any]:
    """Describe a pod that no node has the processors for: its kubelet rejects it."""
    described = pod(name, units, schedulerName="nobody", **_quick({}))
    described["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "500"}
    described["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "500"
    return described


def renamed(described: dict[str, Any], suffix: str) -> dict[str, Any]:
    """Describe the same pod under a name of its own."""
    metadata = described["metadata"]
    return {**described, "metadata": {**metadata, "name": f"{metadata['name']}-{suffix}"}}


def _quick(spec: dict[str, Any]) -> dict[str, Any]:
    return {"terminationGracePeriodSeconds": 1, "restartPolicy": "Never", **spec}
