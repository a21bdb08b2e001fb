"""The extender's configuration: one typed YAML file, and what holds where it says nothing.

Field names in the file are those here in camelCase. msgspec names the place of an unknown key or of
a value of another kind; what is more than a kind is checked in ``__post_init__``.
"""

from typing import Literal

import msgspec

from gpushare.contract import EXTENDER_PORT


class _Section(msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True):
    pass


class ShapePoint(_Section, frozen=True):
    """``utilization`` is 0 to 100, ``score`` 0 to 10, as in RequestedToCapacityRatio."""

    utilization: int
    score: int


class Policy(_Section, frozen=True):
    """How nodes and cards are chosen where a pod has no wish of its own.

    ``shape`` is the node's where ``node`` is "shape". ``candidates``: filter offers that many nodes
    at most, the best by rank; 0 offers all that fit.
    """

    node: Literal["binpack", "spread", "shape"] = "binpack"
    card: Literal["binpack", "spread"] = "binpack"
    shape: tuple[ShapePoint, ...] = ()
    candidates: int = 8


class Address(_Section, frozen=True):
    host: str
    port: int


class Tls(_Section, frozen=True):
    """Paths, read again when they change. ``allowed_names`` are exact names of certificates."""

    certificate: str
    key: str
    authority: str
    allowed_names: tuple[str, ...]


class DecidingTls(_Section, frozen=True):
    host: str
    port: int
    tls: Tls


class ReadingListener(_Section, frozen=True):
    """``access``: "review" asks the API server who it is and what he may; "open" asks nobody."""

    host: str = "0.0.0.0"  # noqa: S104 - made to be reached; who may read is asked of the API server
    port: int = EXTENDER_PORT + 2
    access: Literal["review", "open"] = "review"


class Listen(_Section, frozen=True):
    """``deciding`` is in the clear, so loopback alone; ``deciding_tls`` and ``reading`` are not."""

    deciding: Address = Address("127.0.0.1", EXTENDER_PORT)
    deciding_tls: DecidingTls | None = None
    reading: ReadingListener | None = None


class LeaderElection(_Section, frozen=True):
    """``address`` is where other replicas reach this one; ``tls`` is how they know one another."""

    namespace: str = "gpushare-system"
    name: str = "gpushare-extender"
    lease_seconds: float = 6.0
    renew_seconds: float = 4.0
    retry_seconds: float = 1.0
    address: Address | None = None
    tls: Tls | None = None


class Limits(_Section, frozen=True):
    """At most so many requests of a verb at a time; one more is answered with 429."""

    filter: int = 32
    prioritize: int = 32
    preempt: int = 16
    bind: int = 1000
    reading: int = 16
    body_mib: int = 64


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
