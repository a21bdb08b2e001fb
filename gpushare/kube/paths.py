"""Build the API server's paths of the objects and collections that gpushare uses."""

from dataclasses import dataclass
from urllib.parse import quote

from gpushare.errors import ApiError


@dataclass(frozen=True, slots=True)
class Collection:
    """A path to list and watch, with its selectors."""

    path: str
    field_selector: str = ""
    label_selector: str = ""

    @property
    def query(self) -> list[tuple[str, str]]:
        named = (("fieldSelector", self.field_selector), ("labelSelector", self.label_selector))
        return [(name, value) for name, value in named if value]


def pods(*, field_selector: str = "", namespace: str = "", label_selector: str = "") -> Collection:
    """Return the pods of ``namespace``, by default of all namespaces."""
    path = f"/api/v1/namespaces/{_segment(namespace)}/pods" if namespace else "/api/v1/pods"
    return Collection(path, field_selector, label_selector)


def nodes(*, field_selector: str = "") -> Collection:
    return Collection("/api/v1/nodes", field_selector)


def namespaces() -> Collection:
    return Collection("/api/v1/namespaces")


def events(namespace: str, field_selector: str) -> Collection:
    return Collection(events_path(namespace), field_selector)


def resources_path(group: str, version: str = "") -> str:
    """Return the path that lists the versions of an API group, or the resources of a version."""
    path = f"/apis/{_segment(group)}"
    return f"{path}/{_segment(version)}" if version else path


def pod_groups(group: str, version: str, *, namespace: str = "") -> Collection:
    """Return the PodGroups of an API group in ``namespace``, by default in all namespaces."""
    where = f"/namespaces/{_segment(namespace)}" if namespace else ""
    return Collection(f"{resources_path(group, version)}{where}/podgroups")


def disruption_budgets() -> Collection:
    return Collection(f"{resources_path('policy', 'v1')}/poddisruptionbudgets")


def pod_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{_segment(namespace)}/pods/{_segment(name)}"


def job_path(namespace: str, name: str) -> str:
    return f"{resources_path('batch', 'v1')}/namespaces/{_segment(namespace)}/jobs/{_segment(name)}"


def node_path(name: str) -> str:
    return f"/api/v1/nodes/{_segment(name)}"


def events_path(namespace: str) -> str:
    return f"/api/v1/namespaces/{_segment(namespace)}/events"


def lease_path(namespace: str, name: str = "") -> str:
    """Return the path of one Lease, or of all Leases of a namespace."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{_segment(namespace)}/leases"
    return f"{path}/{_segment(name)}" if name else path


def _segment(name: str) -> str:
    """Quote a name as one segment, so that it cannot address another resource; else ApiError."""
    if not name or name in {".", ".."}:
        raise ApiError(f"{name!r} is not a valid name of a Kubernetes object")
    return quote(name, safe="")
