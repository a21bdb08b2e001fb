"""Cells of the matrix of node setups: the judged container of a pod, and how it may end."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from gpushare.contract import ANNOTATION_CARDS, ANNOTATION_CARDS_ONLY, ENV_VISIBLE_DEVICES
from localcluster.images import CUDA_WORKLOAD
from localcluster.toolkit import Setup
from localcluster.workloads import container, pod

UNITS: Final = 100
JUDGED: Final = "judged"
CLASSES: Final[Mapping[Setup, tuple[str, ...]]] = {
    **dict.fromkeys(Setup, ("", "nvidia")),
    Setup.OPERATOR: ("", "nvidia", "nvidia-cdi", "nvidia-legacy"),
}
"""RuntimeClasses that pods name on each setup; empty for none."""

# Reasons of a waiting or terminated container that has not run: kubelet's kuberuntime_container.go
# and kuberuntime_manager.go, and containerd's StartError.
_NOT_STARTED: Final = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "PreCreateHookError",
        "PreStartHookError",
        "RunContainerError",
        "ContainerCannotRun",
        "StartError",
        "CrashLoopBackOff",
    }
)


class Kind(StrEnum):
    """The container that is judged."""

    CUDA = "CUDA image"
    PLAIN = "plain image"
    OWN = "own variable"
    INIT = "init container"
    SECOND = "second container"
    HIDDEN = "the same with `void`"
    EPHEMERAL = "ephemeral container"

    @property
    def asks(self) -> bool:
        """Return whether it asks for GPU memory."""
        return self not in {Kind.SECOND, Kind.HIDDEN, Kind.EPHEMERAL}


class End(StrEnum):
    """How a container ended up."""

    OWN = "its card"
    NONE = "no card"
    OTHER = "OTHER CARDS"
    REFUSED = "refused"
    WAITING = "waiting"


@dataclass(frozen=True)
class Cell:
    """One container on one node, by its pod's RuntimeClass (empty for none)."""

    node: str
    kind: Kind
    runtime_class: str

    @property
    def pod(self) -> str:
        """Return the name of its pod."""
        words = (self.node, self.kind.name.lower(), self.runtime_class or "none")
        return "-".join(words)


@dataclass(frozen=True)
class Ending:
    """How a cell ended, and the error if there is one."""

    end: End
    why: str = ""

    @property
    def ran(self) -> bool:
        """Return whether the container ran."""
        return self.end in {End.OWN, End.NONE, End.OTHER}

    def is_right(self, kind: Kind) -> bool:
        """Return whether the promise holds: its card and no other, or an error before it runs.

        A container that asks for no GPU memory gets no card, or is refused.
        """
        return self.end in {End.OWN if kind.asks else End.NONE, End.REFUSED}


def pod_of(cell: Cell, card: str) -> dict[str, Any]:
    """Describe the pod of a cell; it may be placed on the card with this UUID only."""
    judged = container(JUDGED, UNITS if cell.kind.asks else None)
    if cell.kind != Kind.PLAIN:
        judged["image"] = CUDA_WORKLOAD
    if value := {Kind.OWN: "all", Kind.HIDDEN: "void"}.get(cell.kind):
        judged["env"] = [{"name": ENV_VISIBLE_DEVICES, "value": value}]
    spec: dict[str, Any] = {"terminationGracePeriodSeconds": 1}
    if cell.runtime_class:
        spec["runtimeClassName"] = cell.runtime_class
    sharer = container("sharer", UNITS)
    containers = {
        Kind.SECOND: [sharer, judged],
        Kind.HIDDEN: [sharer, judged],
        Kind.INIT: [sharer],
        Kind.EPHEMERAL: [sharer],
    }
    if cell.kind == Kind.INIT:
        judged["env"] = [{"name": "WORKLOAD_RUN_SECONDS", "value": "0.3"}]
        spec["initContainers"] = [judged]
    return pod(
        cell.pod,
        node=cell.node,
        containers=containers.get(cell.kind, [judged]),
        metadata={"annotations": {ANNOTATION_CARDS_ONLY: card}},
        **spec,
    )


def ephemeral_container() -> dict[str, Any]:
    """Describe the ephemeral container that is added to a running pod."""
    return {"name": JUDGED, "image": CUDA_WORKLOAD, "imagePullPolicy": "Never"}


def ending_of(
    found: Mapping[str, Any], cards: Collection[str] | None, warnings: Sequence[str]
) -> Ending:
    """Judge a pod as the API server has it.

    `cards` are the UUIDs of the cards whose devices the judged container has; None if it has not
    run. `warnings` are the pod's events of that type, oldest first.
    """
    if cards is not None:
        granted = found["metadata"].get("annotations", {}).get(ANNOTATION_CARDS, "").split(",")
        if not cards:
            return Ending(End.NONE)
        is_own = set(cards) == set(granted)
        return Ending(End.OWN) if is_own else Ending(End.OTHER, ",".join(sorted(cards)))
    status = found["status"]
    if status.get("phase") == "Failed":
        return Ending(End.REFUSED, f"{status.get('reason')}: {status.get('message')}")
    keys = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
    for each in (each for key in keys for each in status.get(key, ())):
        for state in (each.get("lastState", {}), each.get("state", {})):
            told = state.get("waiting") or state.get("terminated") or {}
            if told.get("reason") in _NOT_STARTED and told.get("message"):
                return Ending(End.REFUSED, f"{told['reason']}: {told['message']}")
    if warnings:
        return Ending(End.REFUSED, warnings[-1])
    return Ending(End.WAITING, str(status.get("phase")))
