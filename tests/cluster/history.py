"""The watch history of all pods: everything the API server ever showed, in order."""

import http.client
import json
import socket
import ssl
import threading
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, Self

from gpushare.kube.managed_fields import without_managed_fields
from localcluster.cluster import Cluster
from localcluster.wait import patient, wait_until

DECISION = "ALIYUN_COM_GPU_MEM_IDX"
RESOURCE = "aliyun.com/gpu-mem"


@dataclass(frozen=True)
class Change:
    kind: str
    pod: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.pod["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"]["uid"])

    @property
    def node(self) -> str:
        return str(self.pod["spec"].get("nodeName", ""))

    @property
    def annotations(self) -> dict[str, str]:
        found: dict[str, str] = self.pod["metadata"].get("annotations", {})
        return found

    @property
    def has_ended(self) -> bool:
        """Return whether the pod was deleted or its containers have ended."""
        return self.kind == "DELETED" or self.pod["status"].get("phase") in {"Succeeded", "Failed"}


class History:
    """Record in a thread from ``__enter__`` on.

    After a restart of the API server it lists again, so changes in between are missing.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._changes: list[Change] = []
        self._checked = 0
        self._nodes: dict[str, set[str]] = {}
        self._strangers: set[str] = set()
        self._strange_uids: set[str] = set()
        self._connection: http.client.HTTPConnection | None = None
        self._thread = threading.Thread(target=self._record, daemon=True)
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until(
            "the pod watch", lambda: None if self._connection else "not open yet", seconds=60
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        with suppress(OSError):
            if self._connection is not None and self._connection.sock is not None:
                self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(patient(20))

    def listed(self, found: list[Change]) -> None:
        """Take note of all pods that there are."""
        self._changes += found

    def changed(self, change: Change) -> None:
        """Take note of a change."""
        self._changes.append(change)

    def of(self, name: str) -> list[Change]:
        """Return the changes of the last pod of that name; other tests may have had one too."""
        found = [change for change in list(self._changes) if change.name == name]
        return [change for change in found if change.uid == found[-1].uid]

    @property
    def changes(self) -> list[Change]:
        """Return all changes so far, in order."""
        return list(self._changes)

    def place(self, change: Change) -> int:
        """Return the place of a change among all changes."""
        return next(i for i, each in enumerate(self._changes) if each is change)

    def allow_stranger(self, name: str) -> None:
        """Allow a pod of this name to be bound without gpushare, until the next check."""
        self._strangers.add(name)

    def check_bound_once_and_whole(self) -> None:
        """Check that decision and node come together and that no pod is bound twice.

        Covers the changes since the last check.
        """
        assert self._thread.is_alive(), "the record of all pods has ended"
        fresh = self._changes[self._checked :]
        self._checked += len(fresh)
        self._strange_uids |= {each.uid for each in fresh if each.name in self._strangers}
        self._strangers.clear()
        for change in fresh:
            if RESOURCE not in json.dumps(change.pod["spec"]) or change.uid in self._strange_uids:
                continue
            decided = bool(change.annotations.get(DECISION))
            assert decided == bool(change.node), f"{change.name}: {change.pod}"
            if change.node:
                nodes = self._nodes.setdefault(change.uid, set())
                nodes.add(change.node)
                assert len(nodes) == 1, f"{change.name} was bound to {nodes}"

    def _record(self) -> None:
        while not self._ended.is_set():
            try:
                with closing(self._connect()) as connection:
                    self._watch(connection)
            except (OSError, http.client.HTTPException, ValueError):
                self._ended.wait(0.2)

    def _connect(self) -> http.client.HTTPSConnection:
        cluster = self._cluster
        context = ssl.create_default_context(cafile=str(cluster.state.pki / "ca.crt"))
        context.load_cert_chain(cluster.state.pki / "admin.crt", cluster.state.pki / "admin.key")
        host, port = cluster.server.removeprefix("https://").split(":")
        return http.client.HTTPSConnection(host, int(port), context=context)

    def _watch(self, connection: http.client.HTTPSConnection) -> None:
        with closing(_answer(connection, "/api/v1/pods")) as answer:
            listed = json.loads(without_managed_fields(answer.read()))
        self.listed([Change("LISTED", pod) for pod in listed["items"]])
        version = listed["metadata"]["resourceVersion"]
        path = f"/api/v1/pods?watch=true&timeoutSeconds=7200&resourceVersion={version}"
        with closing(_answer(connection, path)) as answer:
            self._connection = connection
            while line := answer.readline():
                event = json.loads(without_managed_fields(line))
                if event["type"] == "ERROR":
                    raise OSError(f"the watch ended: {event['object']}")
                self.changed(Change(event["type"], event["object"]))


def _answer(connection: http.client.HTTPSConnection, path: str) -> http.client.HTTPResponse:
    """Request a stream of lines; raise OSError if it is rejected, as if it is cut."""
    connection.request("GET", path)
    answer = connection.getresponse()
    if answer.status != http.client.OK:
        with closing(answer):
            raise OSError(f"GET {path}: {answer.status} {answer.read(500)!r}")
    return answer
