"""What the doctor knows about a cluster: plain values, or Unknown in their place."""

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpushare.objects.model import Node
from gpushare.quota.namespaces import Namespace
from gpusharectl.doctor.facts.seen import NAME_LABEL, SeenPod
from gpusharectl.reach.samples import Samples

PLUGIN: Final = "gpushare-deviceplugin"
EXTENDER: Final = "gpushare-extender"
SECOND_SCHEDULER: Final = "gpushare-scheduler"
WEBHOOK: Final = "gpushare-scheduler-name"
GATES: Final = "gpushare-gates"
EXTENDERS: Final = f"-l '{NAME_LABEL} in ({EXTENDER},{SECOND_SCHEDULER})'"
"""For kubectl: the pods with an extender, in either mode."""


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


PATCHES: Final = Permission(EXTENDER, "patch", "pods")
"""What the extender needs for gates and for preemption; their components give it."""
NOMINATES: Final = Permission(EXTENDER, "patch", "pods/status")
"""What only the component gates gives the extender."""
LISTS_BUDGETS: Final = Permission(EXTENDER, "list", "poddisruptionbudgets", "policy")
"""What only the component preemption gives the extender."""
PREEMPTS: Final = (
    PATCHES,
    LISTS_BUDGETS,
    Permission(EXTENDER, "watch", "poddisruptionbudgets", "policy"),
)
"""What the extender needs for preemption beside the right to evict, which the base gives."""
OPTIONAL: Final = (NOMINATES, *PREEMPTS)
"""The rights that the base does not give."""
LISTS_NAMESPACES: Final = tuple(
    Permission(EXTENDER, each, "namespaces") for each in ("list", "watch")
)
"""What the extender needs for quotas and queues only."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Units of GPU memory that the pods of a namespace may request in total, and do."""

    namespace: str
    name: str
    hard: str
    used: str


@dataclass(frozen=True, slots=True)
class Workload:
    """A DaemonSet or Deployment of gpushare.

    ``wanted`` is its number of pods, None if its controller has not said it yet.
    ``runtime_class`` is the pods', ``driver_library`` the node's file that they mount as the
    driver; both may be empty.
    """

    kind: str
    wanted: int | None = None
    runtime_class: str = ""
    driver_library: str = ""


@dataclass(frozen=True, slots=True)
class Warned:
    """A Warning Event: ``about`` is the UID of its object."""

    about: str
    kind: str
    name: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """A ClusterPolicy of the GPU Operator; None where it says nothing.

    ``driver_root`` is where the driver is if the operator installs it.
    """

    name: str
    uses_device_plugin: bool | None = None
    uses_cdi: bool | None = None
    uses_nri: bool | None = None
    installs_driver: bool | None = None
    installs_toolkit: bool | None = None
    is_default_runtime: bool | None = None
    driver_root: str = ""


@dataclass(frozen=True, slots=True)
class Webhook:
    """What the API server ``trusts`` where it calls an extender, and the extender's authority.

    Both are certificates in PEM.
    """

    trusts: bytes
    authority: bytes


@dataclass(frozen=True)
class Facts:
    """Everything that the checks read. ``system`` is the namespace that gpushare runs in.

    The keys of programs are pod names, those of schedulers names for people, those of NodePorts
    the Service's namespace and name. ``memory_unit`` is None if no extender has a configuration
    file; ``gates``, ``preempts``, ``placement``, its section ``policy``, ``profile_rules``, its
    section ``scheduler``, and ``scheduler_names`` are likewise.
    ``warned`` are the Events of the namespace, the newest last. ``webhooks`` are by their names.
    ``queues`` are the namespaces where pods begin gated, ``gating`` the kinds of objects that do it
    and are there. ``limits`` are the namespaces with a quota, also if it cannot be read.
    """

    version: str
    now: dt.datetime
    system: str
    nodes: tuple[Node, ...] = ()
    pods: tuple[SeenPod, ...] = ()
    has_namespace: bool | Unknown = False
    workloads: Mapping[str, Workload] | Unknown = field(default_factory=dict)
    warned: tuple[Warned, ...] | Unknown = ()
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
    operators: tuple[OperatorSettings, ...] | Unknown = ()
    node_ports: Mapping[str, frozenset[int]] | Unknown = field(default_factory=dict)
    webhooks: Mapping[str, Webhook] | Unknown = field(default_factory=dict)
    queues: frozenset[str] | Unknown = frozenset()
    limits: tuple[Namespace, ...] | Unknown = ()
    gating: frozenset[str] | Unknown = frozenset()
    gates: bool | Unknown | None = None
    preempts: bool | Unknown | None = None
    placement: Mapping[str, Any] | Unknown | None = None
    scheduler_names: frozenset[str] | Unknown | None = None
    profile_rules: Mapping[str, Any] | Unknown | None = None

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
