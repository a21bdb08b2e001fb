"""The extender's configuration: one typed YAML file, and what holds where it says nothing.

Field names in the file are those here in camelCase. What of a value is more than its kind is said
in ``problems``, and no section can be made that has one. ``configuration_file`` reads the file.
"""

import ipaddress
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, Literal

import msgspec

from gpushare.contract import EXTENDER_PORT, FORMER_EXTENDER_PORT
from gpushare.errors import SettingsError
from gpushare.process.flags import parse_unit

MAX_PORT: Final = 2**16 - 1
MAX_UTILIZATION: Final = 100
MAX_SCORE: Final = 10
MAX_CANDIDATES: Final = 10_000
MAX_AT_ONCE: Final = 10_000
MAX_BODY_MIB: Final = 1024
MAX_EVICT_SECONDS: Final = 99_999
MAX_LEASE_SECONDS: Final = 300
# Of a lease that is renewed as often as it is tried, that much must be left at any time: a binding
# may last 3 s, and the renewal itself is not instant. With less a leader could bind nothing.
LEFT_SECONDS: Final = 3.5
SAFE: Final = 0.98  # the holder's own part of a lease: clocks run apart

# A place within the section, by the names of the file, and what to write there instead.
Problem = tuple[str, str]


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches ``host``; of names only "localhost" is known to be so."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _address(host: str, port: int) -> Iterator[Problem]:
    yield from _given("host", host)
    yield from _within("port", port, 1, MAX_PORT)


def _within(place: str, value: int, least: int, most: int) -> Iterator[Problem]:
    if not least <= value <= most:
        yield place, f"{value}: write a number from {least} to {most}"


def _given(place: str, text: str) -> Iterator[Problem]:
    if not text.strip():
        yield place, "is empty"


class Unusable(ValueError):
    """A section whose values each are of the right kind and cannot be used all the same."""

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

    utilization: int
    score: int

    def problems(self) -> Iterator[Problem]:
        yield from _within("utilization", self.utilization, 0, MAX_UTILIZATION)
        yield from _within("score", self.score, 0, MAX_SCORE)


class Policy(_Section, frozen=True):
    """How nodes and cards are chosen for pods that set no policy.

    ``shape`` is the node's where ``node`` is "shape". ``candidates``: filter offers that many nodes
    at most, the best by rank; 0 offers all that fit, for kube-scheduler to weigh.
    """

    node: Literal["binpack", "spread", "shape"] = "binpack"
    card: Literal["binpack", "spread"] = "binpack"
    shape: tuple[ShapePoint, ...] = ()
    candidates: int = 1

    def problems(self) -> Iterator[Problem]:
        yield from _within("candidates", self.candidates, 0, MAX_CANDIDATES)
        if self.node == "shape" and not self.shape:
            yield "shape", "node: shape wants points here, as {utilization: 0, score: 0}"
        if self.node != "shape" and self.shape:
            yield "shape", f"counts only with node: shape, and node is {self.node}"
        for place, (left, right) in enumerate(pairwise(self.shape), 1):
            if right.utilization <= left.utilization:
                text = f"{right.utilization} after {left.utilization}: each must be above the last"
                yield f"shape[{place}].utilization", text


class Address(_Section, frozen=True):
    host: str
    port: int

    def problems(self) -> Iterator[Problem]:
        yield from _address(self.host, self.port)


class Tls(_Section, frozen=True):
    """Paths, read again when they change. ``allowed_names`` are exact names of certificates."""

    certificate: str
    key: str
    authority: str
    allowed_names: tuple[str, ...]

    def problems(self) -> Iterator[Problem]:
        for name in ("certificate", "key", "authority"):
            yield from _given(name, getattr(self, name))
        if not self.allowed_names or not all(self.allowed_names):
            yield "allowedNames", "write the exact names that a caller's certificate may have"


class Certificate(_Section, frozen=True):
    """Paths of what a listener shows of itself; read again when they change."""

    certificate: str
    key: str

    def problems(self) -> Iterator[Problem]:
        yield from _given("certificate", self.certificate)
        yield from _given("key", self.key)


class DecidingTls(_Section, frozen=True):
    host: str
    port: int
    tls: Tls

    def problems(self) -> Iterator[Problem]:
        yield from _address(self.host, self.port)


class ReadingListener(_Section, frozen=True):
    """``access``: "review" asks the API server who it is and what he may; "open" asks nobody.

    Callers under review send a token of theirs, so beyond loopback that needs ``tls``.
    """

    host: str = "0.0.0.0"  # noqa: S104 - made to be reached; who may read is asked of the API server
    port: int = EXTENDER_PORT + 2
    access: Literal["review", "open"] = "review"
    tls: Certificate | None = None

    def problems(self) -> Iterator[Problem]:
        yield from _address(self.host, self.port)
        if self.access == "review" and self.tls is None and not is_loopback(self.host):
            text = (
                f"tokens would cross the network to {self.host} in the clear: give a certificate "
                "and key here, or listen on 127.0.0.1, or write access: open"
            )
            yield "tls", text


class Listen(_Section, frozen=True):
    """``deciding`` is in the clear, so loopback alone; ``deciding_tls`` and ``reading`` are not.

    ``former_port`` is served too while ``deciding`` has its default port: kube-schedulers are
    configured after the extender is upgraded. 0 is none.
    """

    deciding: Address = Address("127.0.0.1", EXTENDER_PORT)
    deciding_tls: DecidingTls | None = None
    reading: ReadingListener | None = None
    former_port: int = FORMER_EXTENDER_PORT

    @property
    def former(self) -> Address | None:
        """Where kube-schedulers with the former port are answered; None where they are not."""
        if not self.former_port or self.deciding.port != EXTENDER_PORT:
            return None
        return Address(self.deciding.host, self.former_port)

    def problems(self) -> Iterator[Problem]:
        yield from _within("formerPort", self.former_port, 0, MAX_PORT)
        if not is_loopback(self.deciding.host):
            text = (
                f"{self.deciding.host} is not loopback, and whoever reaches the deciding verbs in "
                "the clear can bind pods: write 127.0.0.1, and for a kube-scheduler elsewhere add "
                "listen.decidingTls"
            )
            yield "deciding.host", text
        taken = {self.deciding.port: "listen.deciding"}
        if self.former is not None and self.former.port in taken:
            yield "formerPort", f"{self.former.port} is the port of listen.deciding"
        elif self.former is not None:
            taken[self.former.port] = "listen.formerPort"
        for place, each in (("decidingTls", self.deciding_tls), ("reading", self.reading)):
            if each is not None and each.port in taken:
                yield f"{place}.port", f"{each.port} is the port of {taken[each.port]}"
            elif each is not None:
                taken[each.port] = f"listen.{place}"


class LeaderElection(_Section, frozen=True, kw_only=True):
    """``address`` is where other replicas reach this one; ``tls`` is how they know one another."""

    namespace: str = "gpushare-system"
    name: str = "gpushare-extender"
    lease_seconds: float = 6.0
    renew_seconds: float = 4.0
    retry_seconds: float = 1.0
    address: Address
    tls: Tls

    def problems(self) -> Iterator[Problem]:
        yield from _given("namespace", self.namespace)
        yield from _given("name", self.name)
        if not 0 < self.lease_seconds <= MAX_LEASE_SECONDS:
            text = f"{self.lease_seconds}: write seconds up to {MAX_LEASE_SECONDS}"
            yield "leaseSeconds", text
        elif self.lease_seconds * SAFE < (least := 1.2 * self.retry_seconds + LEFT_SECONDS):
            text = (
                f"{self.lease_seconds}: no binding could end before such a lease: with "
                f"retrySeconds {self.retry_seconds} write {least / SAFE + 0.05:.1f} at least"
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
    """At most so many requests of a verb at a time on a listener; one more is answered with 429.

    ``reading`` counts inspect, explain and what-if together.
    """

    filter: int = 32
    prioritize: int = 32
    preempt: int = 16
    bind: int = 1000
    reading: int = 16
    body_mib: int = 64  # 5,000 full nodes are some 40 MiB

    def problems(self) -> Iterator[Problem]:
        for verb in ("filter", "prioritize", "preempt", "bind", "reading"):
            yield from _within(verb, getattr(self, verb), 1, MAX_AT_ONCE)
        yield from _within("bodyMib", self.body_mib, 1, MAX_BODY_MIB)


class Configuration(_Section, frozen=True):
    """``leader_election`` None: this is the only replica there ever is."""

    memory_unit: str = "GiB"
    kubeconfig: str | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    evict_after_seconds: int = 60
    policy: Policy = Policy()
    listen: Listen = Listen()
    leader_election: LeaderElection | None = None
    limits: Limits = Limits()

    def problems(self) -> Iterator[Problem]:
        try:
            parse_unit(self.memory_unit)
        except SettingsError:
            text = f"{self.memory_unit[:63]}: write GiB, MiB or a number of them, as 256MiB"
            yield "memoryUnit", text
        yield from _within("evictAfterSeconds", self.evict_after_seconds, 0, MAX_EVICT_SECONDS)
        election = self.leader_election
        if election is not None and election.address is not None:
            own = self.listen
            listeners = (own.deciding, own.former, own.deciding_tls, own.reading)
            if election.address.port in {each.port for each in listeners if each is not None}:
                text = f"{election.address.port} is the port of another listener"
                yield "leaderElection.address.port", text

    @property
    def unit_mib(self) -> int:
        return parse_unit(self.memory_unit)
