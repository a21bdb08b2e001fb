"""Pods with the fields that only the doctor reads."""

from typing import Final

import msgspec

from gpushare.objects.model import (
    Container,
    ContainerState,
    ContainerStatus,
    Pod,
    PodSpec,
    PodStatus,
    Terminated,
)
from gpushare.objects.scheduling import Volume

NAME_LABEL: Final = "app.kubernetes.io/name"


class ConfigMapSource(msgspec.Struct, gc=False, frozen=True):
    name: str = ""


class SeenVolume(Volume, rename="camel", gc=False, frozen=True):
    name: str = ""
    config_map: ConfigMapSource | None = None


class SeenContainer(Container, rename="camel", gc=False, frozen=True):
    image: str = ""


class SeenSpec(PodSpec, rename="camel", gc=False, frozen=True):
    scheduler_name: str | None = None
    volumes: tuple[SeenVolume, ...] | None = None
    containers: tuple[SeenContainer, ...] | None = None


class Waiting(msgspec.Struct, gc=False, frozen=True):
    reason: str | None = None
    message: str | None = None


class SeenTerminated(Terminated, rename="camel", gc=False, frozen=True):
    exit_code: int | None = None
    reason: str | None = None
    message: str | None = None


class SeenState(ContainerState, gc=False, frozen=True):
    waiting: Waiting | None = None
    terminated: SeenTerminated | None = None


class SeenContainerStatus(ContainerStatus, rename="camel", gc=False, frozen=True):
    image: str = ""
    state: SeenState | None = None
    last_state: SeenState | None = None


class SeenStatus(PodStatus, rename="camel", gc=False, frozen=True):
    container_statuses: tuple[SeenContainerStatus, ...] | None = None
    init_container_statuses: tuple[SeenContainerStatus, ...] | None = None


class SeenPod(Pod, gc=False, frozen=True):
    """A pod with its schedulerName, its images, and why its containers wait."""

    spec: SeenSpec = SeenSpec()
    status: SeenStatus = SeenStatus()

    @property
    def is_ready(self) -> bool:
        ready = self.condition("Ready")
        return ready is not None and ready.status == "True"

    @property
    def scheduler(self) -> str:
        return self.spec.scheduler_name or "default-scheduler"

    @property
    def configuration(self) -> str:
        """Return the ConfigMap of the volume ``configuration`` of gpushare's own pods."""
        for volume in self.spec.volumes or ():
            if volume.name == "configuration" and volume.config_map is not None:
                return volume.config_map.name
        return ""

    @property
    def program(self) -> str:
        return self.labels.get(NAME_LABEL, "")

    @property
    def is_of_daemon_set(self) -> bool:
        return any(owner.kind == "DaemonSet" for owner in self.metadata.owner_references or ())

    @property
    def seen_statuses(self) -> tuple[SeenContainerStatus, ...]:
        """Return the container statuses, those of init containers first."""
        status = self.status
        return (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
