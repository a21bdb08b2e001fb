"""What the doctor knows about a cluster: plain values, or Unknown in their place."""

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from gpushare.objects.model import Node, Pod, PodSpec
from gpusharectl.reach.samples import Samples

PLUGIN: Final = "gpushare-deviceplugin"
EXTENDER: Final = "gpushare-extender"
SECOND_SCHEDULER: Final = "gpushare-scheduler"
_NAME: Final = "app.kubernetes.io/name"
EXTENDERS: Final = f"-l '{_NAME} in ({EXTENDER},{SECOND_SCHEDULER})'"
"""For kubectl: the pods with an extender, in either mode."""


class ConfigMapSource(msgspec.Struct, gc=False, frozen=True):
    name: str = ""


class Volume(msgspec.Struct, rename="camel", gc=False, frozen=True):
    name: str = ""
    config_map: ConfigMapSource | None = None


class SeenSpec(PodSpec, rename="camel", gc=False, frozen=True):
    scheduler_name: str | None = None
    volumes: tuple[Volume, ...] | None = None


class SeenPod(Pod, gc=False, frozen=True):
    """A pod with its schedulerName and its configuration's volume."""

    spec: SeenSpec = SeenSpec()

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
        return self.labels.get(_NAME, "")


@dataclass(frozen=True, slots=True)
class Unknown:
    """Replaces a fact that could not be read: ``why``, and whether a right was missing."""

    why: str
    lacks_right: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    """What one of gpushare's programs reports; ``not_ready`` are the reasons of its /readyz."""

    version: str
    not_ready: tuple[str, ...]
    samples: Samples


@dataclass(frozen=True, slots=True)
class LeaderElection:
    """The Lease; ``is_renewed`` if it changed within its own duration."""

    holder: str
    seconds: int
    is_renewed: bool


@dataclass(frozen=True, slots=True)
class Scheduler:
    """A kube-scheduler's own configuration, as its /configz shows it; ``node`` may be empty."""

    node: str
    configuration: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Permission:
    """A right that one of gpushare's accounts needs; ``group`` is ``resource``'s API group."""

    account: str
    verb: str
    resource: str
    group: str = ""
    namespace: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Quota:
    """Units of GPU memory that the pods of a namespace may request in total, and do."""

    namespace: str
    name: str
    hard: str
    used: str


@dataclass(frozen=True)
class Facts:
    """Everything that the checks read. ``system`` is the namespace that gpushare runs in.

    The keys of programs are pod names, those of schedulers names for people, those of NodePorts
    the Service's namespace and name. ``memory_unit`` is None if no extender has a configuration
    file.
    """

    version: str
    now: dt.datetime
    system: str
    nodes: tuple[Node, ...] = ()
    pods: tuple[SeenPod, ...] = ()
    server: str | Unknown = ""
    plugins: Mapping[str, Program | Unknown] = field(default_factory=dict)
    extenders: Mapping[str, Program | Unknown] = field(default_factory=dict)
    election: LeaderElection | Unknown | None = None
    memory_unit: str | Unknown | None = None
    schedulers: Mapping[str, Scheduler | Unknown] = field(default_factory=dict)
    policies: frozenset[str] | Unknown = frozenset()
    policy_bindings: frozenset[str] | Unknown = frozenset()
    permissions: Mapping[Permission, bool | Unknown] = field(default_factory=dict)
    quotas: tuple[Quota, ...] | Unknown = ()
    runtime_classes: frozenset[str] | Unknown = frozenset()
    plugin_runtime: str | Unknown = ""
    node_ports: Mapping[str, frozenset[int]] | Unknown = field(default_factory=dict)

    def pods_of(self, *programs: str) -> list[SeenPod]:
        """Return gpushare's own pods of ``programs`` that are not terminating."""
        return [
            pod
            for pod in self.pods
            if pod.metadata.namespace == self.system
            and pod.program in programs
            and not pod.is_terminal
            and not pod.metadata.deletion_timestamp
        ]
