"""The process that keeps paper nodes Ready by renewing their Leases."""

import datetime as dt
import sys
import time
from pathlib import Path

from localcluster.api import Api
from localcluster.errors import ApiError
from localcluster.paper import LABEL
from localcluster.state import StateFolder

_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_PERIOD_SECONDS = 15.0
_LEASE_SECONDS = 60
_NOT_FOUND = 404


def renew(api: Api) -> int:
    """Renew the Lease of every existing paper node; return how many there are."""
    nodes = api.get(f"/api/v1/nodes?labelSelector={LABEL.replace('/', '%2F')}")["items"]
    for node in nodes:
        name, uid = node["metadata"]["name"], node["metadata"]["uid"]
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": name, "leaseDurationSeconds": _LEASE_SECONDS, "renewTime": now}
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}
        metadata = {"name": name, "ownerReferences": [owner]}
        body = {"metadata": metadata, "spec": spec}
        merge = "application/merge-patch+json"
        try:
            api.request("PATCH", f"{_LEASES}/{name}", body, content_type=merge)
        except ApiError as problem:
            if problem.status != _NOT_FOUND:
                raise
            api.request("POST", _LEASES, body)
    return len(nodes)


def main() -> None:
    """Renew Leases forever; a failure is logged and tried again in the next round."""
    name, path, host = sys.argv[1:]
    state = StateFolder(name, Path(path))
    api = Api(state, host)
    while True:
        try:
            renew(api)
        except ApiError as problem:
            print(problem, file=sys.stderr, flush=True)
        time.sleep(_PERIOD_SECONDS)


if __name__ == "__main__":
    main()
