"""PodGroups of coscheduling and of Kubernetes itself on a real API server."""

from pathlib import Path
from typing import Final

from localcluster.cluster import Cluster
from tests.cluster.expect import wait_established

DEFINITION: Final = Path(__file__).with_name("coscheduling.yaml")
KIND: Final = "podgroups.scheduling.x-k8s.io"
NATIVE_KIND: Final = "podgroups.scheduling.k8s.io"
VERSION: Final = "scheduling.x-k8s.io/v1alpha1"
OBJECTS: Final = f"/apis/{VERSION}/namespaces/default/podgroups"
NATIVE: Final = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"


def serve(cluster: Cluster) -> None:
    """Let the API server serve PodGroups of coscheduling."""
    cluster.kubectl("apply", "-f", str(DEFINITION))
    wait_established(cluster, KIND)


def create(cluster: Cluster, name: str, spec: object, path: str = OBJECTS, **meta: object) -> None:
    version = "/".join(path.split("/")[2:4])
    body = {"apiVersion": version, "kind": "PodGroup", "spec": spec}
    with cluster.api() as api:
        api.request("POST", path, {**body, "metadata": {"name": name, **meta}})


def create_native(cluster: Cluster, name: str, minimum: int) -> None:
    create(cluster, name, {"schedulingPolicy": {"gang": {"minCount": minimum}}}, NATIVE)
