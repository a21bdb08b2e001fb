"""Objects from the API server: only the fields that the doctor reads."""

from typing import Any

import msgspec

from gpushare.objects.model import ObjectMeta


class About(msgspec.Struct):
    """/version of one of gpushare's programs."""

    version: str


class Version(msgspec.Struct, rename="camel"):
    git_version: str


class Named(msgspec.Struct):
    metadata: ObjectMeta


class NamedList(msgspec.Struct):
    items: list[Named] | None = None

    @property
    def names(self) -> frozenset[str]:
        return frozenset(each.metadata.name for each in self.items or ())


class LeaseSpec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None


class Lease(msgspec.Struct):
    metadata: ObjectMeta
    spec: LeaseSpec


class ConfigMap(msgspec.Struct):
    data: dict[str, str] | None = None


class QuotaStatus(msgspec.Struct):
    hard: dict[str, str] | None = None
    used: dict[str, str] | None = None


class Quota(msgspec.Struct):
    metadata: ObjectMeta
    status: QuotaStatus


class QuotaList(msgspec.Struct):
    items: list[Quota] | None = None


class _ServicePort(msgspec.Struct, rename="camel"):
    node_port: int | None = None


class _ServiceSpec(msgspec.Struct, rename="camel"):
    ports: list[_ServicePort] | None = None
    health_check_node_port: int | None = None


class Service(msgspec.Struct):
    metadata: ObjectMeta
    spec: _ServiceSpec

    @property
    def node_ports(self) -> frozenset[int]:
        listed = [each.node_port for each in self.spec.ports or ()]
        return frozenset(port for port in (*listed, self.spec.health_check_node_port) if port)


class ServiceList(msgspec.Struct):
    items: list[Service] | None = None


class _PodSpec(msgspec.Struct, rename="camel"):
    runtime_class_name: str | None = None


class _Template(msgspec.Struct):
    spec: _PodSpec


class _DaemonSetSpec(msgspec.Struct):
    template: _Template


class DaemonSet(msgspec.Struct):
    spec: _DaemonSetSpec

    @property
    def runtime(self) -> str:
        return self.spec.template.spec.runtime_class_name or ""


class ReviewStatus(msgspec.Struct):
    allowed: bool


class Review(msgspec.Struct):
    status: ReviewStatus


class Configz(msgspec.Struct):
    """kube-scheduler's configuration in its internal form."""

    componentconfig: dict[str, Any]
