"""Make kube-scheduler try rejected pods again, in versions that wait for minutes."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from localcluster.cluster import Cluster
from localcluster.errors import ApiError

PODS: Final = "/api/v1/namespaces/default/pods"
WAITING: Final = f"{PODS}?fieldSelector=spec.nodeName%3D"
ANNOTATION: Final = "trial/retry"
MERGE: Final = "application/merge-patch+json"
EVERY_SECONDS: Final = 5.0


@contextmanager
def retried_pods(cluster: Cluster) -> Iterator[None]:
    """Change an annotation of each waiting pod every five seconds, before Kubernetes 1.32.

    These versions try a pod again that an extender rejected, or about which it did not answer, only
    after five minutes, at certain events, or when the pod changes
    (docs/installation-options.md, *Kubernetes versions*). A trial would only measure that time.
    """
    if cluster.version.retries_rejected_pods:
        yield
        return
    ended = threading.Event()
    changing = threading.Thread(target=_change, args=(cluster, ended), daemon=True)
    changing.start()
    try:
        yield
    finally:
        ended.set()
        changing.join()


def _change(cluster: Cluster, ended: threading.Event) -> None:
    number = 0
    with cluster.api() as api:
        while not ended.wait(EVERY_SECONDS):
            number += 1
            patch = {"metadata": {"annotations": {ANNOTATION: str(number)}}}
            with suppress(ApiError):  # the next round tries again
                for each in api.get(WAITING)["items"]:
                    with suppress(ApiError):  # it may be deleted by now
                        path = f"{PODS}/{each['metadata']['name']}"
                        api.request("PATCH", path, patch, content_type=MERGE)
