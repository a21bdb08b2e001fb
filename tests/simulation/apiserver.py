"""The simulated API server: answer requests from the store, at one moment of virtual time."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import msgspec

from tests.simulation.patches import patched
from tests.simulation.store import (
    Change,
    Object,
    Store,
    edited,
    gates_of,
    is_leaving,
    node_of,
    phase_of,
    uid_of,
)

MOST_OF_A_PAGE: Final = 20  # it may always have fewer than were asked for

Selector = Callable[[Object], bool]


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request as it reached the server."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    sender: str

    @classmethod
    def of(cls, method: str, url: str, body: bytes, sender: str) -> "Request":
        parts = urlsplit(url)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        return cls(method, parts.path, query, msgspec.json.decode(body) if body else None, sender)

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") == "true"

    @property
    def is_binding(self) -> bool:
        return self.path.endswith("/binding")

    @property
    def seconds(self) -> float:
        """Return how long the server may work on it."""
        return float(self.query.get("timeout", "60000ms").removesuffix("ms")) / 1000


def refusal(
    code: int, reason: str, message: str = "", details: object = None, **headers: str
) -> Answer:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return Answer(code, msgspec.json.encode(body | {"details": details}), headers)


class ApiServer:
    """Calls ``arrives`` with the sender of every request for a Binding, granted or not.

    ``bound`` is called with sender, pod and body of every granted Binding; ``evicted`` with sender
    and pod of every eviction. ``now`` returns its time, ``may_patch`` is whether extenders have the
    right to patch pods, ``webhook_is_down`` whether every patch fails because of a webhook.
    """

    def __init__(
        self,
        store: Store,
        now: Callable[[], datetime],
        *,
        may_patch: bool,
        arrives: Callable[[str], None],
        bound: Callable[[str, Object, dict[str, Any]], None],
        evicted: Callable[[str, Object], None],
    ) -> None:
        self._store, self._now, self._may_patch = store, now, may_patch
        self._arrives, self._bound, self._evicted = arrives, bound, evicted
        self.webhook_is_down = False
        self._pages: dict[str, tuple[int, list[Object]]] = {}

    def answer(self, request: Request) -> Answer:
        """Do what is requested, now."""
        parts = tuple(request.path.strip("/").split("/"))
        match request.method, parts:
            case "GET", (*_, ("pods" | "nodes" | "namespaces" | "poddisruptionbudgets") as kind):
                return self._list(kind, request)
            case _, ("api", "v1", "namespaces", _, "pods", name, *part):
                return self._answer_about_pod(name, "".join(part), request)
            case "POST", (*_, "selfsubjectaccessreviews"):
                return Answer(201, msgspec.json.encode({"status": {"allowed": self._may_patch}}))
            case "POST", ("api", "v1", "namespaces", _, "events"):
                return Answer(201, b"{}")
            case "GET", ("apis", "batch", "v1", "namespaces", _, "jobs", name):
                return _not_found(name)  # it is gone: only its pods say who has succeeded
            case "GET", (*_, "leases", name):
                return self._read("leases", name)
            case "POST", (*_, "leases"):
                return self._create_lease(request.body)
            case "PUT", (*_, "leases", name):
                return self._write_lease(name, request.body)
        raise NotImplementedError(f"{request.method} {request.path}")

    def _answer_about_pod(self, name: str, part: str, request: Request) -> Answer:
        match request.method, part:
            case "GET", "":
                return self._read("pods", name)
            case "POST", "binding":
                return self._bind(name, request)
            case "POST", "eviction":
                return self._evict(name, request)
            case "PATCH", ("" | "status"):
                return self._patch(name, part, request.body)
        raise NotImplementedError(f"{request.method} {request.path}")

    def why_no_watch(self, request: Request) -> Answer | None:
        """Return the rejection of a watch that begins too long ago."""
        if int(request.query["resourceVersion"]) >= self._store.compacted:
            return None
        return refusal(410, "Expired", "too old resource version")

    def _read(self, kind: str, name: str) -> Answer:
        found = self._store.objects[kind].get(name)
        return _not_found(name) if found is None else Answer(body=msgspec.json.encode(found))

    def _list(self, kind: str, request: Request) -> Answer:
        token = request.query.get("continue", "")
        if token:
            version, left = self._pages.pop(token, (0, []))
            if version < max(1, self._store.compacted):
                return refusal(410, "Expired", "the provided continue parameter is too old")
        else:
            selector = selector_of(request)
            version = self._store.version
            left = [item for item in self._store.objects[kind].values() if selector(item)]
        most = min(int(request.query.get("limit", "500")), MOST_OF_A_PAGE)
        meta: dict[str, Any] = {"resourceVersion": str(version)}
        if left[most:]:
            meta["continue"] = f"{version}-{len(left)}-{request.sender}"
            self._pages[meta["continue"]] = version, left[most:]
        return Answer(body=msgspec.json.encode({"metadata": meta, "items": left[:most]}))

    def _bind(self, name: str, request: Request) -> Answer:
        """As ``BindingREST.Create`` (pkg/registry/core/pod/storage/storage.go)."""
        self._arrives(request.sender)
        pod, meta = self._store.pods.get(name), request.body["metadata"]
        if pod is None:
            return _not_found(name)
        if meta.get("uid") and meta["uid"] != uid_of(pod):
            return refusal(409, "Conflict", f"the uid in the precondition is not {uid_of(pod)}")
        if is_leaving(pod):
            return refusal(409, "Conflict", f"pod {name} is being deleted")
        if node_of(pod):
            return refusal(409, "Conflict", f"pod {name} is already assigned to {node_of(pod)}")
        if gates := gates_of(pod):
            return refusal(
                409, "Conflict", f"pod {name} has non-empty .spec.schedulingGates {gates}"
            )
        after = edited(pod)
        at = self._now().isoformat()
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at}
        after["status"]["conditions"] = [scheduled]
        after["spec"]["nodeName"] = request.body["target"]["name"]
        after["metadata"]["annotations"] |= meta.get("annotations") or {}
        self._bound(request.sender, pod, request.body)
        self._store.put("pods", after)
        return Answer(201, b"{}")

    def _evict(self, name: str, request: Request) -> Answer:
        pod = self._store.pods.get(name)
        if pod is None:
            return _not_found(name)
        wanted, meta = request.body["deleteOptions"]["preconditions"], pod["metadata"]
        if any(meta[each] != value for each, value in wanted.items()):
            return refusal(409, "Conflict", "the precondition does not hold")
        if request.query.get("dryRun"):
            return Answer(201, b"{}")
        self._evicted(request.sender, pod)
        after = edited(pod)
        after["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
        self._store.put("pods", after)
        return Answer(201, b"{}")

    def _patch(self, name: str, part: str, patch: dict[str, Any]) -> Answer:
        pod = self._store.pods.get(name)
        if pod is None:
            return _not_found(name)
        if self.webhook_is_down:
            return refusal(500, "InternalError", "failed calling webhook: connection refused")
        if patch["metadata"]["uid"] != uid_of(pod):
            causes = [{"field": "metadata.uid", "message": "field is immutable"}]
            return refusal(422, "Invalid", details={"causes": causes})
        return Answer(body=msgspec.json.encode(self._store.put("pods", patched(pod, patch, part))))

    def _create_lease(self, lease: Object) -> Answer:
        if lease["metadata"]["name"] in self._store.objects["leases"]:
            return refusal(409, "AlreadyExists")
        lease["metadata"]["creationTimestamp"] = self._now().isoformat()
        return Answer(201, msgspec.json.encode(self._store.put("leases", lease)))

    def _write_lease(self, name: str, lease: Object) -> Answer:
        found = self._store.objects["leases"].get(name)
        if found is None:
            return _not_found(name)
        if found["metadata"]["resourceVersion"] != lease["metadata"]["resourceVersion"]:
            return refusal(409, "Conflict", "the object has been modified")
        return Answer(body=msgspec.json.encode(self._store.put("leases", lease)))


def selector_of(request: Request) -> Selector:
    """Return the filter of the selectors: of fields by ``status.phase``, of labels by one value."""
    label, _, value = request.query.get("labelSelector", "").partition("=")
    text = request.query.get("fieldSelector", "")
    out = {term.partition("!=")[2] for term in text.split(",") if "!=" in term}
    wanted = {term.partition("=")[2] for term in text.split(",") if "=" in term and "!" not in term}
    if not all(term.startswith("status.phase") for term in text.split(",") if term):
        raise NotImplementedError(f"fieldSelector {text}")
    return lambda item: (
        (not text or (phase_of(item) not in out and (not wanted or phase_of(item) in wanted)))
        and (not label or item["metadata"]["labels"].get(label) == value)
    )


def event_lines(changes: Iterable[Change], selector: Selector) -> list[bytes]:
    """Return the lines of a watch for these changes.

    An object that leaves the selection is deleted: as it was before, with the version of the change
    (``convertToWatchEvent``, apiserver/pkg/storage/cacher).
    """
    lines = []
    for change in changes:
        before, after = change.before, change.after
        was_in = before is not None and selector(before)
        is_in = after is not None and selector(after)
        if is_in:
            lines.append(_line("MODIFIED" if was_in else "ADDED", after))
        elif was_in and before is not None:
            version = {"resourceVersion": str(change.version)}
            told = {**before, "metadata": {**before["metadata"], **version}}
            lines.append(_line("DELETED", told))
    return lines


def bookmark(kind: str, version: int) -> bytes:
    return _line("BOOKMARK", {"kind": kind, "metadata": {"resourceVersion": str(version)}})


def _line(kind: str, item: Object | None) -> bytes:
    return msgspec.json.encode({"type": kind, "object": item}) + b"\n"


def _not_found(name: str) -> Answer:
    return refusal(404, "NotFound", f"{name!r} not found")
