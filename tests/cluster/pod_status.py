"""Changes of every field of a pod's status, as the API server's own description has them."""

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from localcluster.cluster import Cluster

_OWN: Final = "io.k8s.api.core.v1.PodStatus"
_STRATEGIC: Final = "application/strategic-merge-patch+json"
CLAIM: Final = "x"  # the name of a claim that a pod needs, for its status


def samples(cluster: Cluster) -> Iterator[tuple[str, Any]]:
    """Yield each field of PodStatus and a value for it; conditions have a type of their own."""
    with cluster.api() as api:
        schemas = api.get("/openapi/v3/api/v1")["components"]["schemas"]
    for field, schema in schemas[_OWN]["properties"].items():
        yield field, _sample(schema, schemas)


def _sample(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    for each in (schema, *schema.get("allOf", ())):
        if "$ref" in each:
            return _sample(schemas[each["$ref"].rpartition("/")[2]], schemas)
    match schema.get("type"):
        case "string":
            return "2026-01-01T00:00:00Z" if schema.get("format") == "date-time" else CLAIM
        case "integer":
            return 7
        case "boolean":
            return True
        case "array":
            return [_sample(schema["items"], schemas)]
        case "object" if "properties" in schema:
            fields = schema.get("required") or list(schema["properties"])
            return {key: _sample(schema["properties"][key], schemas) for key in fields}
        case "object":
            return {CLAIM: "1"}
        case _:
            return "1"


def change_status(cluster: Cluster, kubeconfig: Path, name: str, **status: Any) -> tuple[Any, str]:
    """Try, without effect, to change a pod's status with an account's token.

    Return the status as it would be and an empty text, or what the API server says against it.
    """
    context = ssl.create_default_context(cafile=str(cluster.state.pki / "ca.crt"))
    path = f"/api/v1/namespaces/default/pods/{name}/status?dryRun=All"
    headers = {
        "Authorization": f"Bearer {kubeconfig.with_suffix('.token').read_text()}",
        "Content-Type": _STRATEGIC,
    }
    request = urllib.request.Request(  # noqa: S310 - the cluster's own address
        f"{cluster.server}{path}",
        json.dumps({"status": status}).encode(),
        headers,
        method="PATCH",
    )
    try:
        with urllib.request.urlopen(request, context=context, timeout=10) as answer:  # noqa: S310
            return json.loads(answer.read())["status"], ""
    except urllib.error.HTTPError as refused:
        with refused:
            return None, json.loads(refused.read())["message"]


def open_fields(cluster: Cluster, kubeconfig: Path, name: str) -> set[str]:
    """Return the fields of a pod's status that an account can change.

    Raise AssertionError if the policies never say that they reject a change.
    """
    found, rejected = set(), 0
    for field, value in samples(cluster):
        after, said = change_status(cluster, kubeconfig, name, **{field: value})
        rejected += "ValidatingAdmissionPolicy 'gpushare-" in said
        # The API server may drop a field of a feature that is off.
        if not said and after.get(field) not in (None, _before(cluster, name).get(field)):
            found.add(field)
    assert rejected > 8, rejected
    return found


def _before(cluster: Cluster, name: str) -> dict[str, Any]:
    with cluster.api() as api:
        status: dict[str, Any] = api.get(f"/api/v1/namespaces/default/pods/{name}")["status"]
    return status
