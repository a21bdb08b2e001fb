"""What the doctor knows of a cluster: plain values, and in the place of each perhaps Unknown."""

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
"""For kubectl: what runs an extender, beside kube-scheduler or in the second one's pods."""


class ConfigMapSource(msgspec.Struct, gc=False, frozen=True):
    name: str = ""


class Volume(msgspec.Struct, rename="camel", gc=False, frozen=True):
    name: str = ""
    config_map: ConfigMapSource | None = None


class SeenSpec(PodSpec, rename="camel", gc=False, frozen=True):
    scheduler_name: str | None = None
    volumes: tuple[Volume, ...] | None = None


class SeenPod(Pod, gc=False, frozen=True):
    """A pod, which kube-scheduler it waits for, and where its configuration comes from."""

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
        """The ConfigMap that the volume ``configuration`` of our own pods is made of."""
        return next(
            (
                volume.config_map.name
                for volume in self.spec.volumes or ()
                if volume.name == "configuration" and volume.config_map is not None
            ),
            "",
        )

    @property
    def program(self) -> str:
        return self.labels.get(_NAME, "")


@dataclass(frozen=True, slots=True)
class Unknown:
    """In the place of a fact that could not be had: ``why``, and whether a right was missing."""

    why: str
    lacks_right: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    """What a program of ours says of itself; ``not_ready`` are the reasons of its /readyz."""

    version: str
    not_ready: tuple[str, ...]
    samples: Samples


@dataclass(frozen=True, slots=True)
class Election:
    """The Lease: ``is_renewed`` if it changed while we looked, for as long as it says it holds."""

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
    """A right that an account of ours needs; ``group`` is the API group of ``resource``."""

    account: str
    verb: str
    resource: str
    group: str = ""
    namespace: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Quota:
    """Units of GPU memory that pods of a namespace may ask for in sum, and do."""

    namespace: str
    name: str
    hard: str
    used: str


@dataclass(frozen=True)
class Facts:
    """Everything that the checks look at. ``system`` is the namespace that gpushare runs in.

    Programs are by their pod's name, certificates by their Secret's, schedulers by what they are
    called to people, NodePorts by the Service's namespace and name. ``memory_unit`` is None where
    no extender has a configuration file.
    """

    version: str
    now: dt.datetime
    system: str
    nodes: tuple[Node, ...] = ()
    pods: tuple[SeenPod, ...] = ()
    server: str | Unknown = ""
    plugins: Mapping[str, Program | Unknown] = field(default_factory=dict)
    extenders: Mapping[str, Program | Unknown] = field(default_factory=dict)
    election: Election | Unknown | None = None
    memory_unit: str | Unknown | None = None
    schedulers: Mapping[str, Scheduler | Unknown] = field(default_factory=dict)
    certificates: Mapping[str, dt.datetime | Unknown] = field(default_factory=dict)
    policies: frozenset[str] | Unknown = frozenset()
    policy_bindings: frozenset[str] | Unknown = frozenset()
    permissions: Mapping[Permission, bool | Unknown] = field(default_factory=dict)
    quotas: tuple[Quota, ...] | Unknown = ()
    runtime_classes: frozenset[str] | Unknown = frozenset()
    plugin_runtime: str | Unknown = ""
    node_ports: Mapping[str, frozenset[int]] | Unknown = field(default_factory=dict)

    def pods_of(self, *programs: str) -> list[SeenPod]:
        """Our own pods that run, or are to run, one of ``programs``; not those that are ending."""
        return [
            pod
            for pod in self.pods
            if pod.metadata.namespace == self.system
            and pod.program in programs
            and not pod.is_terminal
            and not pod.metadata.deletion_timestamp
        ]
