"""Why a pod of gpushare does not start, as the kubelet reports it (pure)."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from gpusharectl.doctor.facts.cluster import EXTENDER, PLUGIN, SECOND_SCHEDULER, Facts, Unknown
from gpusharectl.doctor.facts.seen import SeenContainerStatus, SeenPod

_LONGEST: Final = 300  # characters of a message that are shown
_BEGINNING: Final = 100  # of these, from its beginning

# Reasons of the kubelet (pkg/kubelet/images, pkg/kubelet/kuberuntime).
_IMAGE: Final = {
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
    "RegistryUnavailable",
    "SignatureValidationFailed",
}
_CREATION: Final = {
    "CreateContainerConfigError",
    "CreateContainerError",
    "PostStartHookError",
    "PreCreateHookError",
    "PreStartHookError",
    "RunContainerError",
}
_NOT_YET: Final = {"ContainerCreating", "PodInitializing"}
# Events of pods whose containers wait with one of these.
_BEFORE: Final = {"FailedAttachVolume", "FailedCreatePodSandBox", "FailedMount"}


class Cause(Enum):
    IMAGE = auto()
    CREATION = auto()
    CRASH = auto()


@dataclass(frozen=True, slots=True)
class StartFailure:
    """``container`` is empty if none of the pod's containers can be created."""

    pod: SeenPod
    cause: Cause
    container: str
    image: str
    said: str


def start_failures(facts: Facts) -> dict[str, StartFailure]:
    """Return the first failure of each pod of gpushare that is not ready, by pod name."""
    found: dict[str, StartFailure] = {}
    for pod in facts.pods_of(PLUGIN, EXTENDER, SECOND_SCHEDULER):
        failure = None if pod.is_ready else next(_failures(pod, facts), None)
        if failure is not None:
            found[pod.metadata.name] = failure
    return found


def waits_without_reason(facts: Facts, *programs: str) -> Iterator[SeenPod]:
    """Yield the pods of these programs whose containers wait; only Events say why."""
    for pod in facts.pods_of(*programs):
        if not pod.is_ready and any(map(_is_not_created, pod.seen_statuses)):
            yield pod


def why_not_created(facts: Facts, workload: str) -> str:
    """Return the newest Event that says why pods of a DaemonSet or Deployment are not created."""
    warned = () if isinstance(facts.warned, Unknown) else facts.warned
    said = [
        each.message
        for each in warned
        if each.reason == "FailedCreate"
        and (each.name == workload or (each.kind, each.name[: len(workload) + 1]) == _set(workload))
    ]
    return brief(said[-1]) if said else ""


def brief(text: str) -> str:
    """Return a message in one line of bounded length, with its end, which has the cause."""
    line = " ".join(text.split())
    if len(line) <= _LONGEST:
        return line
    return f"{line[:_BEGINNING]} ... {line[_BEGINNING - _LONGEST :]}"


def _set(deployment: str) -> tuple[str, str]:
    return "ReplicaSet", f"{deployment}-"


def _failures(pod: SeenPod, facts: Facts) -> Iterator[StartFailure]:
    for status in pod.seen_statuses:
        waiting = status.state.waiting if status.state is not None else None
        reason = (waiting.reason if waiting is not None else None) or ""
        said = (waiting.message if waiting is not None else None) or ""
        text = brief(f"{reason}: {said}" if said else reason)
        if reason in _IMAGE:
            yield StartFailure(pod, Cause.IMAGE, status.name, status.image, text)
        elif reason in _CREATION:
            yield StartFailure(pod, Cause.CREATION, status.name, status.image, text)
        elif (ended := _ended(status)) is not None:
            yield StartFailure(pod, Cause.CRASH, status.name, status.image, ended)
    if any(map(_is_not_created, pod.seen_statuses)) and not isinstance(facts.warned, Unknown):
        for event in reversed(facts.warned):
            if event.about == pod.uid and event.reason in _BEFORE:
                text = brief(f"{event.reason}: {event.message}")
                yield StartFailure(pod, Cause.CREATION, "", "", text)


def _is_not_created(status: SeenContainerStatus) -> bool:
    waiting = status.state.waiting if status.state is not None else None
    return waiting is not None and waiting.reason in _NOT_YET


def _ended(status: SeenContainerStatus) -> str | None:
    """Return how a container ended that the kubelet restarts; None if it did not fail."""
    now, last = status.state, status.last_state
    is_backing_off = (
        now is not None and now.waiting is not None and now.waiting.reason == "CrashLoopBackOff"
    )
    state = last if is_backing_off else now
    ended = state.terminated if state is not None else None
    if ended is None:
        return "CrashLoopBackOff" if is_backing_off else None
    if not ended.exit_code:
        return "CrashLoopBackOff: it ended with exit code 0" if is_backing_off else None
    before = "CrashLoopBackOff: " if is_backing_off else ""
    said = brief(ended.message or ended.reason or "")
    return f"{before}it ended with exit code {ended.exit_code}" + (f": {said}" if said else "")
