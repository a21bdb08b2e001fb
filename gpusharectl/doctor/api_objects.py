"""Objects from the API server: only the fields that the doctor reads."""

from typing import Any

import msgspec

from gpushare.objects.model import ObjectMeta
from gpushare.quota.namespaces import NamespaceObject
from gpusharectl.doctor.facts.cluster import OperatorSettings, Warned, Workload


class About(msgspec.Struct):
    """/version of one of gpushare's programs."""

    version: str


class Version(msgspec.Struct, rename="camel"):
    git_version: str


class NamespaceList(msgspec.Struct):
    items: list[NamespaceObject] | None = None


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


class _ClientConfig(msgspec.Struct, rename="camel"):
    ca_bundle: bytes = b""


class _Webhook(msgspec.Struct, rename="camel"):
    client_config: _ClientConfig


class WebhookConfiguration(msgspec.Struct):
    webhooks: list[_Webhook] | None = None

    @property
    def trusts(self) -> bytes:
        return b"\n".join(each.client_config.ca_bundle for each in self.webhooks or ())


class _Certificates(msgspec.Struct):
    authority: bytes = msgspec.field(name="ca.crt", default=b"")


class Secret(msgspec.Struct):
    """A Secret with certificates, without its key."""

    data: _Certificates


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


class _HostPath(msgspec.Struct):
    path: str = ""


class _Volume(msgspec.Struct, rename="camel"):
    name: str
    host_path: _HostPath | None = None


class _PodSpec(msgspec.Struct, rename="camel"):
    runtime_class_name: str | None = None
    volumes: list[_Volume] | None = None


class _Template(msgspec.Struct):
    spec: _PodSpec


class _WorkloadSpec(msgspec.Struct):
    template: _Template
    replicas: int | None = None


class _WorkloadStatus(msgspec.Struct, rename="camel"):
    desired_number_scheduled: int | None = None
    observed_generation: int | None = None


class WorkloadObject(msgspec.Struct):
    """A DaemonSet or a Deployment."""

    metadata: ObjectMeta
    spec: _WorkloadSpec
    status: _WorkloadStatus

    def workload(self, kind: str) -> Workload:
        spec = self.spec.template.spec
        library = [
            each.host_path.path
            for each in spec.volumes or ()
            if each.name == "nvml" and each.host_path is not None
        ]
        # A controller that has not seen the object has not counted either.
        wanted = self.status.desired_number_scheduled if self.status.observed_generation else None
        return Workload(
            kind,
            self.spec.replicas if kind == "Deployment" else wanted,
            spec.runtime_class_name or "",
            library[0] if library else "",
        )


class WorkloadList(msgspec.Struct):
    items: list[WorkloadObject] | None = None


class _Involved(msgspec.Struct):
    kind: str = ""
    name: str = ""
    uid: str = ""


class Event(msgspec.Struct, rename="camel"):
    metadata: ObjectMeta
    involved_object: _Involved
    reason: str = ""
    message: str = ""
    last_timestamp: str | None = None
    event_time: str | None = None

    @property
    def seen(self) -> str:
        """Return when it was last seen; texts of this format sort by time."""
        return (self.last_timestamp or self.event_time or self.metadata.creation_timestamp) or ""

    @property
    def warned(self) -> Warned:
        about = self.involved_object
        return Warned(about.uid, about.kind, about.name, self.reason, self.message)


class EventList(msgspec.Struct):
    items: list[Event] | None = None


class _Switch(msgspec.Struct, rename="camel"):
    enabled: bool | None = None
    nri_plugin_enabled: bool | None = None


class _EnvVar(msgspec.Struct):
    name: str = ""
    value: str = ""


class _Toolkit(msgspec.Struct):
    enabled: bool | None = None
    env: list[_EnvVar] | None = None


class _HostPaths(msgspec.Struct, rename="camel"):
    driver_install_dir: str | None = None


class _ClusterPolicySpec(msgspec.Struct, rename="camel"):
    cdi: _Switch | None = None
    driver: _Switch | None = None
    toolkit: _Toolkit | None = None
    device_plugin: _Switch | None = None
    host_paths: _HostPaths | None = None


class ClusterPolicy(msgspec.Struct):
    """The GPU Operator's settings (its API nvidia.com/v1)."""

    metadata: ObjectMeta
    spec: _ClusterPolicySpec

    @property
    def settings(self) -> OperatorSettings:
        spec, toolkit = self.spec, self.spec.toolkit
        env = {each.name: each.value for each in toolkit.env or ()} if toolkit is not None else {}
        default = env.get("NVIDIA_RUNTIME_SET_AS_DEFAULT")
        default = default or env.get("CONTAINERD_SET_AS_DEFAULT")
        return OperatorSettings(
            self.metadata.name,
            uses_device_plugin=_enabled(spec.device_plugin),
            uses_cdi=_enabled(spec.cdi),
            uses_nri=spec.cdi.nri_plugin_enabled if spec.cdi is not None else None,
            installs_driver=_enabled(spec.driver),
            installs_toolkit=toolkit.enabled if toolkit is not None else None,
            is_default_runtime=None if default is None else default == "true",
            driver_root=(spec.host_paths.driver_install_dir if spec.host_paths else None) or "",
        )


class ClusterPolicyList(msgspec.Struct):
    items: list[ClusterPolicy] | None = None


def _enabled(switch: _Switch | None) -> bool | None:
    return None if switch is None else switch.enabled


class ReviewStatus(msgspec.Struct):
    allowed: bool


class Review(msgspec.Struct):
    status: ReviewStatus


class Configz(msgspec.Struct):
    """kube-scheduler's configuration in its internal form."""

    componentconfig: dict[str, Any]
