"""Read facts about a cluster from the API server, except nodes and pods."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec
import yaml

from gpushare.contract import LABEL_QUEUE, RESOURCE_MEMORY, SCHEDULER_NAMES
from gpushare.errors import UNCONSTRUCTABLE, ApiError, NotFound, RecordError
from gpushare.kube.client import Kube
from gpushare.kube.paths import lease_path
from gpushare.quota.namespaces import Namespace, namespace_of
from gpushare.text import bounded_yaml
from gpusharectl.doctor import api_objects
from gpusharectl.doctor.checks.access import account, needed
from gpusharectl.doctor.facts.cluster import (
    EXTENDER,
    GATES,
    OPTIONAL,
    PLUGIN,
    SECOND_SCHEDULER,
    WEBHOOK,
    Facts,
    LeaderElection,
    OperatorSettings,
    Permission,
    Quota,
    Unknown,
    Warned,
    Webhook,
    Workload,
)
from gpusharectl.doctor.known import each_known
from gpusharectl.reach.polling import poll
from gpusharectl.reach.rights import Right, needing

OWN: Final = frozenset({PLUGIN, EXTENDER, SECOND_SCHEDULER})
QUOTA: Final = f"requests.{RESOURCE_MEMORY}"
MOST_EVENTS: Final = 500
LEASE_SECONDS: Final = 60  # at most, to see whether the Lease is renewed
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

T = TypeVar("T")


class Api:
    """One method for each fact; all raise ApiError. ``bare`` has only nodes and pods."""

    def __init__(self, kube: Kube, bare: Facts) -> None:
        self._kube, self._bare, self._system = kube, bare, bare.system

    async def server(self) -> str:
        right = Right("get", "/version", is_namespaced=False)
        return (await self._get("/version", right, api_objects.Version)).git_version

    async def election(self) -> LeaderElection | None:
        right = Right("get", "leases.coordination.k8s.io", self._system)
        path = lease_path(self._system, EXTENDER)
        try:
            first = await self._get(path, right, api_objects.Lease)
        except NotFound:
            return None
        seconds, seen = first.spec.lease_duration_seconds or 0, first.metadata.resource_version

        async def is_changed() -> bool:
            now = await self._get(path, right, api_objects.Lease)
            return now.metadata.resource_version != seen

        # Its timestamp is of another machine's clock, so wait until it changes.
        is_renewed = await poll(is_changed, min(seconds, LEASE_SECONDS))
        if not is_renewed and seconds > LEASE_SECONDS:
            raise ApiError(f"it did not change within {LEASE_SECONDS} s, and may last {seconds} s")
        return LeaderElection(first.spec.holder_identity or "", seconds, is_renewed)

    async def memory_unit(self) -> str | None:
        """Return the memoryUnit in the file that an extender's pod mounts."""
        settings = await self._settings()
        return None if settings is None else str(settings.get("memoryUnit") or "GiB")

    async def gates(self) -> bool | None:
        """Return whether gated pods wait for room, by the same file."""
        settings = await self._settings()
        return None if settings is None else settings.get("gates") is not False

    async def preempts(self) -> bool | None:
        """Return whether the extender evicts pods for more important ones, by the same file."""
        settings = await self._settings()
        if settings is None:
            return None
        section = settings.get("preemption")
        return isinstance(section, dict) and section.get("enabled") is True

    async def section(self, name: str) -> dict[str, Any] | None:
        """Return a section of the same file, empty if it has none."""
        settings = await self._settings()
        if settings is None:
            return None
        section = settings.get(name) or {}
        if not isinstance(section, dict):
            raise RecordError(f"{name} in the extender's configuration is not a mapping")
        return section

    async def scheduler_names(self) -> frozenset[str] | None:
        """Return the schedulers of which the extender knows that they call it, by the same file."""
        settings = await self._settings()
        if settings is None:
            return None
        names = settings.get("schedulerNames") or SCHEDULER_NAMES
        if not isinstance(names, list | tuple):
            raise RecordError("schedulerNames in the extender's configuration is not a list")
        return frozenset(map(str, names))

    async def _settings(self) -> dict[str, Any] | None:
        for pod in self._bare.pods_of(EXTENDER, SECOND_SCHEDULER):
            if name := pod.configuration:
                path = f"/api/v1/namespaces/{self._system}/configmaps/{name}"
                right = Right("get", "configmaps", self._system)
                found = await self._get(path, right, api_objects.ConfigMap)
                return _parsed((found.data or {}).get("extender.yaml") or "")
        return None

    async def queues(self) -> frozenset[str]:
        """Return the namespaces where pods begin gated."""
        right = Right("list", "namespaces", is_namespaced=False)
        query = [("labelSelector", f"{LABEL_QUEUE}=true")]
        return (await self._get("/api/v1/namespaces", right, api_objects.NamedList, query)).names

    async def limits(self) -> tuple[Namespace, ...]:
        """Return the namespaces with a quota, also if it cannot be read."""
        right = Right("list", "namespaces", is_namespaced=False)
        found = await self._get("/api/v1/namespaces", right, api_objects.NamespaceList)
        all_of_them = map(namespace_of, found.items or ())
        return tuple(each for each in all_of_them if each.quota is not None or each.problem)

    async def gating(self) -> frozenset[str]:
        """Return the kinds of objects that gate pods and are there."""
        kinds = (
            (_ADMISSION, "mutatingwebhookconfigurations"),
            (_ADMISSION, "mutatingadmissionpolicybindings"),
            (f"{_ADMISSION}beta1", "mutatingadmissionpolicybindings"),
        )
        found = set()
        for group, kind in kinds:
            right = Right("get", f"{kind}.admissionregistration.k8s.io", is_namespaced=False)
            with suppress(NotFound):  # also if Kubernetes does not know the kind
                await self._get(f"{group}/{kind}/{GATES}", right, api_objects.Named)
                found.add(kind)
        return frozenset(found)

    async def policies(self, kind: str) -> frozenset[str]:
        right = Right("list", f"{kind}.admissionregistration.k8s.io", is_namespaced=False)
        try:
            found = await self._get(f"{_ADMISSION}/{kind}", right, api_objects.NamedList)
        except NotFound:  # Kubernetes is too old for them
            return frozenset()
        return found.names

    async def webhooks(self) -> dict[str, Webhook]:
        """Return gpushare's webhooks by name."""
        found = {name: await self._webhook(name) for name in (WEBHOOK, GATES)}
        return {name: each for name, each in found.items() if each is not None}

    async def _webhook(self, name: str) -> Webhook | None:
        """Return None without the webhook, or without the Secret: that is another finding."""
        kind = "mutatingwebhookconfigurations"
        right = Right("get", f"{kind}.admissionregistration.k8s.io", is_namespaced=False)
        secrets = Right("get", "secrets", self._system)
        path = f"/api/v1/namespaces/{self._system}/secrets/{EXTENDER}-tls"
        try:
            hook = await self._get(
                f"{_ADMISSION}/{kind}/{name}", right, api_objects.WebhookConfiguration
            )
            secret = await self._get(path, secrets, api_objects.Secret)
        except NotFound:
            return None
        return Webhook(hook.trusts, secret.data.authority)

    async def permissions(self) -> dict[Permission, bool | Unknown]:
        return await each_known((*needed(self._system), *OPTIONAL), self._is_allowed)

    async def _is_allowed(self, wanted: Permission) -> bool:
        resource, _, subresource = wanted.resource.partition("/")
        attributes = {
            "verb": wanted.verb,
            "group": wanted.group,
            "resource": resource,
            "subresource": subresource,
            "namespace": wanted.namespace,
            "name": wanted.name,
        }
        user, groups = account(wanted, self._system), _groups(self._system)
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": attributes, "groups": groups},
        }
        right = Right("create", "subjectaccessreviews.authorization.k8s.io", is_namespaced=False)
        with needing(right):
            answer = await self._kube.request("POST", _REVIEWS, body=body)
        return msgspec.json.decode(answer, type=api_objects.Review).status.allowed

    async def quotas(self) -> tuple[Quota, ...]:
        right = Right("list", "resourcequotas")
        found = await self._get("/api/v1/resourcequotas", right, api_objects.QuotaList)
        return tuple(
            Quota(
                each.metadata.namespace,
                each.metadata.name,
                hard,
                (each.status.used or {}).get(QUOTA, "0"),
            )
            for each in found.items or ()
            if (hard := (each.status.hard or {}).get(QUOTA)) is not None
        )

    async def runtime_classes(self) -> frozenset[str]:
        right = Right("list", "runtimeclasses.node.k8s.io", is_namespaced=False)
        path = "/apis/node.k8s.io/v1/runtimeclasses"
        return (await self._get(path, right, api_objects.NamedList)).names

    async def node_ports(self) -> dict[str, frozenset[int]]:
        right = Right("list", "services")
        found = await self._get("/api/v1/services", right, api_objects.ServiceList)
        return {
            f"{each.metadata.namespace}/{each.metadata.name}": each.node_ports
            for each in found.items or ()
            if each.node_ports
        }

    async def has_namespace(self) -> bool:
        right = Right("get", "namespaces", is_namespaced=False)
        try:
            await self._get(f"/api/v1/namespaces/{self._system}", right, api_objects.Named)
        except NotFound:
            return False
        return True

    async def workloads(self) -> dict[str, Workload]:
        """Return gpushare's DaemonSets and Deployments by name."""
        found: dict[str, Workload] = {}
        for kind in ("DaemonSet", "Deployment"):
            plural = f"{kind.lower()}s"
            right = Right("list", f"{plural}.apps", self._system)
            path = f"/apis/apps/v1/namespaces/{self._system}/{plural}"
            for each in (await self._get(path, right, api_objects.WorkloadList)).items or ():
                if each.metadata.name in OWN:
                    found[each.metadata.name] = each.workload(kind)
        return found

    async def warned(self) -> tuple[Warned, ...]:
        right = Right("list", "events", self._system)
        path = f"/api/v1/namespaces/{self._system}/events"
        query = [("fieldSelector", "type=Warning"), ("limit", str(MOST_EVENTS))]
        events = (await self._get(path, right, api_objects.EventList, query)).items or ()
        return tuple(each.warned for each in sorted(events, key=lambda event: event.seen))

    async def operators(self) -> tuple[OperatorSettings, ...]:
        """Return the GPU Operator's settings; none if the cluster does not know the operator."""
        right = Right("list", "clusterpolicies.nvidia.com", is_namespaced=False)
        try:
            path = "/apis/nvidia.com/v1/clusterpolicies"
            found = await self._get(path, right, api_objects.ClusterPolicyList)
        except NotFound:
            return ()
        return tuple(each.settings for each in found.items or ())

    async def _get(
        self, path: str, right: Right, kind: type[T], query: Sequence[tuple[str, str]] = ()
    ) -> T:
        with needing(right):
            body = await self._kube.request("GET", path, query=list(query))
        return msgspec.json.decode(body, type=kind)


def _groups(system: str) -> list[str]:
    """Return the groups of every ServiceAccount of ``system``."""
    return ["system:serviceaccounts", f"system:serviceaccounts:{system}", "system:authenticated"]


def _parsed(text: str) -> dict[str, Any]:
    """Return an extender's configuration file; RecordError if unreadable."""
    try:
        found = bounded_yaml.load(text) or {}
    except (yaml.YAMLError, *UNCONSTRUCTABLE) as err:
        raise RecordError(f"the extender's configuration cannot be read: {err}") from err
    if not isinstance(found, dict):
        raise RecordError("the extender's configuration cannot be read: it is not a mapping")
    return found
