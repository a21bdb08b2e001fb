"""The extender's configuration: one typed YAML file, and its defaults.

The file has the field names of the sections in camelCase. ``file.py`` reads it and checks each
value's type and range. ``problems`` checks the rest, and a section with a problem cannot be
constructed.
"""

import ipaddress
from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from gpushare.contract import (
    EXTENDER_PORT,
    FORMER_EXTENDER_PORT,
    RESOURCE_MEMORY,
    SCHEDULER_NAMES,
)
from gpushare.errors import SettingsError
from gpushare.objects.pod_requests import is_foreign
from gpushare.objects.scheduling import FIELD_NAME, NodeSelector, NodeSelectorTerm, Requirement
from gpushare.placement.node_constraints import ProfileRules
from gpushare.process.flags import parse_unit

MAX_PORT: Final = 2**16 - 1
MAX_LEASE_SECONDS: Final = 300
# At least that much must be left of a lease at any time if all renewals succeed: a binding may take
# 3 s, and the renewal takes time too. With less, a leader could not bind.
LEFT_SECONDS: Final = 3.5
NAMESPACE: Final = "gpushare-system"  # of gpushare
SAFE: Final = 0.98  # the part of a lease that its holder uses: clocks drift

Port = Annotated[int, Meta(ge=1, le=MAX_PORT)]
AtOnce = Annotated[int, Meta(ge=1, le=10_000)]
NotEmpty = Annotated[str, Meta(pattern=r"\S")]

# A place in the section, by the names in the file, and what to write there instead.
Problem = tuple[str, str]


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches ``host``; "localhost" is the only known name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Unusable(ValueError):
    """The values of a section have the right types and still cannot be used."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(f"{place}: {text}" for place, text in problems))
        self.problems = problems


class _Section(msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True):
    def problems(self) -> Iterator[Problem]:
        yield from ()

    def __post_init__(self) -> None:
        if found := list(self.problems()):
            raise Unusable(found)


class ShapePoint(_Section, frozen=True):
    """``utilization`` is 0 to 100, ``score`` 0 to 10, as in RequestedToCapacityRatio."""

    utilization: Annotated[int, Meta(ge=0, le=100)]
    score: Annotated[int, Meta(ge=0, le=10)]


class Policy(_Section, frozen=True):
    """How nodes and GPUs are chosen for pods without annotations about it.

    ``shape`` scores nodes if ``node`` is "shape". ``candidates`` limits the nodes that filter
    returns, the best by rank; 0 returns all that fit, and kube-scheduler scores them.
    """

    node: Literal["binpack", "spread", "shape", "prices"] = "binpack"
    card: Literal["binpack", "spread"] = "binpack"
    shape: tuple[ShapePoint, ...] = ()
    candidates: Annotated[int, Meta(ge=0, le=10_000)] = 1

    def problems(self) -> Iterator[Problem]:
        if self.node == "shape" and not self.shape:
            yield "shape", "node: shape requires points here, such as {utilization: 0, score: 0}"
        if self.node != "shape" and self.shape:
            yield "shape", f"applies only to node: shape, and node is {self.node}"
        for place, (left, right) in enumerate(pairwise(self.shape), 1):
            if right.utilization <= left.utilization:
                text = f"{right.utilization} after {left.utilization}: each must be above the last"
                yield f"shape[{place}].utilization", text


class ZoneRoleSetting(_Section, frozen=True):
    """Only gangs that use ``from_cards`` to ``to_cards`` GPUs in all may be placed in ``zone``."""

    zone: NotEmpty
    from_cards: Annotated[int, Meta(ge=0)] = 0
    to_cards: Annotated[int, Meta(ge=1)] = 2**31

    def problems(self) -> Iterator[Problem]:
        if self.from_cards > self.to_cards:
            yield "fromCards", f"{self.from_cards} is above toCards, {self.to_cards}"


class GangSettings(_Section, frozen=True):
    """How gangs are placed whose PodGroup says nothing else.

    ``complete_seconds`` is the time from the first bound member to the minimum.
    """

    complete_seconds: Annotated[int, Meta(ge=10, le=86_400)] = 300
    zone_roles: tuple[ZoneRoleSetting, ...] = ()


class QueueSettings(_Section, frozen=True):
    """In which order gated pods and gangs get room.

    ``order``: of equal priority, "fair" prefers the namespace that uses the smallest part of its
    quota, "fifo" the oldest pod or gang. ``backfill``: whether others may pass the first one that
    has no room. Who has been the first for ``reserve_after_seconds`` gets GPUs reserved as they
    become free; 0 reserves none. ``autoscaled``: whether pods are released without room, as far as
    quotas allow it, because autoscalers ignore gated pods.
    """

    order: Literal["fair", "fifo"] = "fair"
    backfill: bool = True
    reserve_after_seconds: Annotated[int, Meta(ge=0, le=7 * 86_400)] = 1800
    autoscaled: bool = False


class PreemptionSettings(_Section, frozen=True):
    """Whether and how the extender evicts pods for more important ones.

    ``delay_seconds`` is how long a pod must have been pending before it may evict others, so that
    an autoscaler can add a node first. ``victims``: "lower" for all pods of a lower priority,
    "preemptible" for those of them with the label gpushare.aliyun.com/preemptible=true.
    """

    enabled: bool = False
    delay_seconds: Annotated[int, Meta(ge=0, le=86_400)] = 0
    victims: Literal["lower", "preemptible"] = "lower"


class NodeRequirement(_Section, frozen=True):
    """As in a pod's node affinity."""

    key: NotEmpty
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: tuple[str, ...] = ()

    @property
    def read(self) -> Requirement:
        return Requirement(self.key, self.operator, self.values)


class NodeTerm(_Section, frozen=True):
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


class NodeTerms(_Section, frozen=True):
    node_selector_terms: tuple[NodeTerm, ...]

    @property
    def read(self) -> NodeSelector:
        return NodeSelector(tuple(each.read for each in self.node_selector_terms))


class AddedAffinity(
    _Section, rename={"required": "requiredDuringSchedulingIgnoredDuringExecution"}, frozen=True
):
    """The required part of kube-scheduler's own: what is preferred there rejects no node."""

    required: NodeTerms


class SchedulerSettings(_Section, frozen=True):
    """What kube-scheduler's configuration says about all pods, with the names that it has there.

    ``ignored_resources`` and ``ignored_resource_groups`` are of NodeResourcesFitArgs, and the
    resources that another extender has as ``ignoredByScheduler``. ``added_affinity`` is of
    NodeAffinityArgs.
    """

    ignored_resources: tuple[NotEmpty, ...] = ()
    ignored_resource_groups: tuple[NotEmpty, ...] = ()
    added_affinity: AddedAffinity | None = None

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


class Address(_Section, frozen=True):
    host: NotEmpty
    port: Port


class Certificate(_Section, frozen=True):
    """Paths of the files that a listener presents; read again when they change."""

    certificate: NotEmpty
    key: NotEmpty


class Tls(Certificate, frozen=True):
    """``allowed_names`` are compared exactly with the names in a caller's certificate."""

    authority: NotEmpty
    allowed_names: tuple[str, ...]

    def problems(self) -> Iterator[Problem]:
        if not self.allowed_names or not all(self.allowed_names):
            yield "allowedNames", "write the exact names that a caller's certificate may have"


class DecidingTls(Address, frozen=True):
    tls: Tls


class ReadingListener(Address, frozen=True):
    """``access``: "review" has the API server check each caller's token and rights; "open" does
    not authenticate. Callers under review send a token, so beyond loopback that requires ``tls``.
    """

    host: NotEmpty = "0.0.0.0"  # noqa: S104 - for other machines; the API server checks callers
    port: Port = EXTENDER_PORT + 2
    access: Literal["review", "open"] = "review"
    tls: Certificate | None = None

    def problems(self) -> Iterator[Problem]:
        if self.access == "review" and self.tls is None and not is_loopback(self.host):
            text = (
                f"tokens would cross the network to {self.host} without TLS: write a certificate "
                "and key here, or listen on 127.0.0.1, or write access: open"
            )
            yield "tls", text


class AddedToleration(_Section, frozen=True):
    """As in a pod. An empty ``effect`` stands for all of them."""

    key: NotEmpty
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""

    def problems(self) -> Iterator[Problem]:
        if self.operator == "Exists" and self.value:
            yield "value", "operator is Exists, for any value: leave it out, or write Equal there"


GPU_TAINT: Final = AddedToleration(key="nvidia.com/gpu", effect="NoSchedule")


class Admission(Address, frozen=True):
    """The API server calls it without a certificate.

    New pods with GPU memory get ``scheduler_name`` and those of ``tolerations`` that they lack.
    """

    tls: Certificate
    scheduler_name: NotEmpty = "gpushare-scheduler"
    tolerations: tuple[AddedToleration, ...] = (GPU_TAINT,)


class Listen(_Section, frozen=True):
    """``deciding`` has no TLS, so it must be on loopback, unlike the other two.

    ``former_port`` is also served while ``deciding`` has its default port, because kube-schedulers
    are reconfigured after the extender is upgraded. 0 turns it off.
    """

    deciding: Address = Address("127.0.0.1", EXTENDER_PORT)
    deciding_tls: DecidingTls | None = None
    reading: ReadingListener | None = None
    admission: Admission | None = None
    former_port: Annotated[int, Meta(ge=0, le=MAX_PORT)] = FORMER_EXTENDER_PORT

    @property
    def former(self) -> Address | None:
        """Return the address for kube-schedulers with the former port, or None."""
        if not self.former_port or self.deciding.port != EXTENDER_PORT:
            return None
        return Address(self.deciding.host, self.former_port)

    def problems(self) -> Iterator[Problem]:
        if not is_loopback(self.deciding.host):
            text = (
                f"{self.deciding.host} is not loopback, and clients of this listener can bind pods "
                "without authentication: write 127.0.0.1, and for a kube-scheduler on another "
                "machine add listen.decidingTls"
            )
            yield "deciding.host", text
        taken = {self.deciding.port: "listen.deciding"}
        if self.former is not None and self.former.port in taken:
            yield "formerPort", f"{self.former.port} is the port of listen.deciding"
        elif self.former is not None:
            taken[self.former.port] = "listen.formerPort"
        others = {
            "decidingTls": self.deciding_tls,
            "reading": self.reading,
            "admission": self.admission,
        }
        for place, each in others.items():
            if each is not None and each.port in taken:
                yield f"{place}.port", f"{each.port} is the port of {taken[each.port]}"
            elif each is not None:
                taken[each.port] = f"listen.{place}"


class LeaderElection(_Section, frozen=True, kw_only=True):
    """``address`` is where replicas listen for each other; ``tls`` authenticates them."""

    namespace: NotEmpty = NAMESPACE
    name: NotEmpty = "gpushare-extender"
    lease_seconds: float = 6.0
    renew_seconds: float = 4.0
    retry_seconds: float = 1.0
    address: Address
    tls: Tls

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


class Limits(_Section, frozen=True):
    """The most requests of a verb in progress on one listener; further ones get 429.

    ``reading`` counts inspect, explain and what-if together.
    """

    filter: AtOnce = 32
    prioritize: AtOnce = 32
    preempt: AtOnce = 16
    bind: AtOnce = 1000
    reading: AtOnce = 16
    # 5,000 full nodes are some 40 MiB.
    body_mib: Annotated[int, Meta(ge=1, le=1024)] = 64


class Configuration(_Section, frozen=True):
    """Without ``leader_election`` this is the only replica.

    ``gates``: whether gated pods wait for room; otherwise they are released at once.
    ``scheduler_names`` are the profiles of the kube-schedulers that call the extender. Nothing is
    kept, released or evicted for pods of others.
    """

    memory_unit: str = "GiB"
    kubeconfig: str | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    evict_after_seconds: Annotated[int, Meta(ge=0, le=99_999)] = 60
    gates: bool = True
    scheduler_names: tuple[NotEmpty, ...] = SCHEDULER_NAMES
    policy: Policy = Policy()
    gangs: GangSettings = GangSettings()
    queue: QueueSettings = QueueSettings()
    preemption: PreemptionSettings = PreemptionSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    listen: Listen = Listen()
    leader_election: LeaderElection | None = None
    limits: Limits = Limits()

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
