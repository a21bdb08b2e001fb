"""The extender's configuration: one typed YAML file, and its defaults.

The file has the field names of the sections in camelCase. ``file.py`` reads it and checks each
value's type and range. ``problems`` checks the rest, and a section with a problem cannot be
constructed.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Final, Literal

from msgspec import Meta

from extender.settings.listeners import OWN_CERTIFICATE, Address, Listen, Tls
from extender.settings.section import NotEmpty, Problem, Section
from gpushare.contract import RESOURCE_MEMORY, SCHEDULER_NAMES
from gpushare.errors import SettingsError
from gpushare.objects.pod_requests import is_foreign
from gpushare.objects.scheduling import FIELD_NAME, NodeSelector, NodeSelectorTerm, Requirement
from gpushare.placement.node_constraints import ProfileRules
from gpushare.process.flags import parse_unit

MAX_LEASE_SECONDS: Final = 300
# At least that much must be left of a lease at any time if all renewals succeed: a binding may take
# 3 s, and the renewal takes time too. With less, a leader could not bind.
LEFT_SECONDS: Final = 3.5
NAMESPACE: Final = "gpushare-system"  # of gpushare
SAFE: Final = 0.98  # the part of a lease that its holder uses: clocks drift

AtOnce = Annotated[int, Meta(ge=1, le=10_000)]


class ShapePoint(Section, frozen=True):
    """``utilization`` is 0 to 100, ``score`` 0 to 10, as in RequestedToCapacityRatio."""

    utilization: Annotated[int, Meta(ge=0, le=100)]
    score: Annotated[int, Meta(ge=0, le=10)]


class Policy(Section, frozen=True):
    """How nodes and GPUs are chosen for pods without annotations about it."""

    node: Annotated[
        Literal["binpack", "spread", "shape", "prices"], Meta(description="the order of nodes")
    ] = "binpack"
    card: Annotated[
        Literal["binpack", "spread"], Meta(description="the order of a node's GPUs")
    ] = "binpack"
    shape: Annotated[
        tuple[ShapePoint, ...],
        Meta(description="of node: shape, points such as {utilization: 0, score: 0}"),
    ] = ()
    candidates: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000,
            description="the most nodes that filter offers, the best first; 0: all, which leaves "
            "GPU memory in pieces",
        ),
    ] = 1

    def problems(self) -> Iterator[Problem]:
        if self.node == "shape" and not self.shape:
            yield "shape", "node: shape requires points here, such as {utilization: 0, score: 0}"
        if self.node != "shape" and self.shape:
            yield "shape", f"applies only to node: shape, and node is {self.node}"
        for place, (left, right) in enumerate(pairwise(self.shape), 1):
            if right.utilization <= left.utilization:
                text = f"{right.utilization} after {left.utilization}: each must be above the last"
                yield f"shape[{place}].utilization", text


class ZoneRoleSetting(Section, frozen=True):
    """Only gangs that use ``from_cards`` to ``to_cards`` GPUs in all may be placed in ``zone``."""

    zone: NotEmpty
    from_cards: Annotated[int, Meta(ge=0)] = 0
    to_cards: Annotated[int, Meta(ge=1)] = 2**31

    def problems(self) -> Iterator[Problem]:
        if self.from_cards > self.to_cards:
            yield "fromCards", f"{self.from_cards} is above toCards, {self.to_cards}"


class GangSettings(Section, frozen=True):
    """How gangs are placed whose PodGroup says nothing else."""

    complete_seconds: Annotated[
        int,
        Meta(ge=10, le=86_400, description="from the first bound member to the minimum"),
    ] = 300
    zone_roles: Annotated[
        tuple[ZoneRoleSetting, ...],
        Meta(
            description="such as {zone: a, fromCards: 1, toCards: 8}: only gangs of so many GPUs "
            "may be placed in the zone"
        ),
    ] = ()


class QueueSettings(Section, frozen=True):
    """In which order gated pods and gangs get room."""

    order: Annotated[
        Literal["fair", "fifo"],
        Meta(
            description="of equal priority, the namespace that uses the smallest part of its quota "
            "first (fair), or the oldest (fifo)"
        ),
    ] = "fair"
    backfill: Annotated[
        bool, Meta(description="whether pods that fit may pass one that does not")
    ] = True
    reserve_after_seconds: Annotated[
        int,
        Meta(
            ge=0,
            le=7 * 86_400,
            description="the first that has waited so long claims GPUs as they become free; "
            "0: never",
        ),
    ] = 1800
    autoscaled: Annotated[
        bool,
        Meta(
            description="whether autoscalers add nodes, so that pods are released without room; "
            "needs the component autoscaling"
        ),
    ] = False


class PreemptionSettings(Section, frozen=True):
    """Whether and how the extender evicts pods for more important ones."""

    enabled: Annotated[
        bool,
        Meta(
            description="whether pods of a lower priority are evicted for pods and gangs without "
            "room; needs the component preemption"
        ),
    ] = False
    delay_seconds: Annotated[
        int,
        Meta(
            ge=0,
            le=86_400,
            description="how long a pod is Pending first, so that autoscalers can add a node",
        ),
    ] = 0
    victims: Annotated[
        Literal["lower", "preemptible"],
        Meta(
            description="lower: all pods of a lower priority; preemptible: those with the label "
            "gpushare.aliyun.com/preemptible=true"
        ),
    ] = "lower"


class NodeRequirement(Section, frozen=True):
    """As in a pod's node affinity."""

    key: NotEmpty
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: tuple[str, ...] = ()

    @property
    def read(self) -> Requirement:
        return Requirement(self.key, self.operator, self.values)


class NodeTerm(Section, frozen=True):
    match_expressions: tuple[NodeRequirement, ...] = ()
    match_fields: tuple[NodeRequirement, ...] = ()

    def problems(self) -> Iterator[Problem]:
        if not (self.match_expressions or self.match_fields):
            yield "matchExpressions", "is missing: a term without requirements selects no node"
        for place, each in enumerate(self.match_fields):
            if not each.read.is_judged_field:
                yield f"matchFields[{place}]", f"write key: {FIELD_NAME}, operator: In or NotIn"

    @property
    def read(self) -> NodeSelectorTerm:
        labels, fields = self.match_expressions, self.match_fields
        return NodeSelectorTerm(tuple(e.read for e in labels), tuple(e.read for e in fields))


class NodeTerms(Section, frozen=True):
    node_selector_terms: tuple[NodeTerm, ...]

    @property
    def read(self) -> NodeSelector:
        return NodeSelector(tuple(each.read for each in self.node_selector_terms))


class AddedAffinity(
    Section, rename={"required": "requiredDuringSchedulingIgnoredDuringExecution"}, frozen=True
):
    """The required part of kube-scheduler's own: what is preferred there rejects no node."""

    required: NodeTerms


class SchedulerSettings(Section, frozen=True):
    """What kube-scheduler's configuration says about all pods, with the names it has there."""

    ignored_resources: Annotated[
        tuple[NotEmpty, ...],
        Meta(
            description="of NodeResourcesFitArgs, and what another extender has as "
            "ignoredByScheduler"
        ),
    ] = ()
    ignored_resource_groups: Annotated[
        tuple[NotEmpty, ...], Meta(description="of NodeResourcesFitArgs")
    ] = ()
    added_affinity: Annotated[
        AddedAffinity | None,
        Meta(
            description="of NodeAffinityArgs, its part "
            "{requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [...]}}"
        ),
    ] = None

    def problems(self) -> Iterator[Problem]:
        for place, name in enumerate(self.ignored_resources):
            if not is_foreign(name):
                text = f"{name[:63]}: write extended resources, such as example.com/license"
                yield f"ignoredResources[{place}]", text
        for place, group in enumerate(self.ignored_resource_groups):
            if "/" in group or RESOURCE_MEMORY.startswith(f"{group}/"):
                text = f"{group[:63]}: write what others' resources have before the slash"
                yield f"ignoredResourceGroups[{place}]", text

    @property
    def rules(self) -> ProfileRules:
        """Return the settings as plans apply them."""
        resources, groups = self.ignored_resources, self.ignored_resource_groups
        added = self.added_affinity.required.read if self.added_affinity else None
        return ProfileRules(frozenset(resources), frozenset(groups), added)


class LeaderElection(Section, frozen=True, kw_only=True):
    namespace: NotEmpty = NAMESPACE
    name: Annotated[str, Meta(pattern=r"\S", description="of the Lease; the Role names it too")] = (
        "gpushare-extender"
    )
    lease_seconds: Annotated[float, Meta(description="at least 4.8")] = 6.0
    renew_seconds: float = 4.0
    retry_seconds: float = 1.0
    address: Annotated[
        Address,
        Meta(
            description="where replicas listen for each other; $GPUSHARE_ADDRESS is announced",
            examples=[{"host": "0.0.0.0", "port": 29767}],  # noqa: S104 - replicas are elsewhere
        ),
    ]
    tls: Annotated[
        Tls, Meta(description="the first name is the leader's", examples=[OWN_CERTIFICATE])
    ]

    def problems(self) -> Iterator[Problem]:
        if not 0 < self.lease_seconds <= MAX_LEASE_SECONDS:
            text = f"{self.lease_seconds}: write seconds up to {MAX_LEASE_SECONDS}"
            yield "leaseSeconds", text
        elif self.lease_seconds * SAFE < (least := 1.2 * self.retry_seconds + LEFT_SECONDS):
            text = (
                f"{self.lease_seconds}: too short for a binding: with retrySeconds "
                f"{self.retry_seconds} write at least {least / SAFE + 0.05:.1f}"
            )
            yield "leaseSeconds", text
        if not 0 < self.renew_seconds < (most := self.lease_seconds * SAFE):
            yield "renewSeconds", f"{self.renew_seconds}: write seconds below {most:.2f}"
        if not 0 < self.retry_seconds < self.renew_seconds:
            yield (
                "retrySeconds",
                f"{self.retry_seconds}: write seconds below renewSeconds, {self.renew_seconds}",
            )


class Limits(Section, frozen=True):
    """The most requests of a verb in progress on one listener; further ones get 429."""

    filter: AtOnce = 32
    prioritize: AtOnce = 32
    preempt: AtOnce = 16
    bind: AtOnce = 1000
    reading: Annotated[
        int, Meta(ge=1, le=10_000, description="inspect, explain and what-if together")
    ] = 16
    body_mib: Annotated[
        int, Meta(ge=1, le=1024, description="of a request; 5,000 full nodes need 40 MiB")
    ] = 64


class Configuration(Section, frozen=True):
    memory_unit: Annotated[
        str, Meta(description="the size of one aliyun.com/gpu-mem: GiB, MiB or such as 256MiB")
    ] = "GiB"
    kubeconfig: Annotated[
        str | None, Meta(description="a path; without it, the pod's ServiceAccount")
    ] = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    evict_after_seconds: Annotated[
        int,
        Meta(ge=0, le=99_999, description="evicts bound pods whose GPU cannot be used; 0: never"),
    ] = 60
    gates: Annotated[
        bool,
        Meta(description="whether gated pods wait for room; false releases them immediately"),
    ] = True
    scheduler_names: Annotated[
        tuple[NotEmpty, ...],
        Meta(description="the profiles of kube-scheduler that call the extender"),
    ] = SCHEDULER_NAMES
    policy: Policy = Policy()
    gangs: GangSettings = GangSettings()
    queue: QueueSettings = QueueSettings()
    preemption: PreemptionSettings = PreemptionSettings()
    scheduler: Annotated[
        SchedulerSettings, Meta(description="what kube-scheduler's configuration says, repeated")
    ] = SchedulerSettings()
    listen: Listen = Listen()
    leader_election: Annotated[
        LeaderElection | None, Meta(description="without it, this is the only replica")
    ] = None
    limits: Annotated[
        Limits, Meta(description="the most concurrent calls on one listener; more get 429")
    ] = Limits()

    def problems(self) -> Iterator[Problem]:
        try:
            parse_unit(self.memory_unit)
        except SettingsError:
            text = f"{self.memory_unit[:63]}: write GiB, MiB or a number of them, such as 256MiB"
            yield "memoryUnit", text
        if not self.scheduler_names:
            yield "schedulerNames", "name each profile of kube-scheduler that calls the extender"
        election = self.leader_election
        if election is not None:
            own = self.listen
            listeners = (own.deciding, own.former, own.deciding_tls, own.reading, own.admission)
            if election.address.port in {each.port for each in listeners if each is not None}:
                text = f"{election.address.port} is the port of another listener"
                yield "leaderElection.address.port", text

    @property
    def unit_mib(self) -> int:
        return parse_unit(self.memory_unit)
