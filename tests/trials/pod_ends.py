"""Ends deleted pods after their grace period, as their kubelets would."""

import heapq
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, Self

from localcluster.api import Api
from localcluster.cluster import Cluster
from localcluster.errors import ApiError

FINALIZER: Final = "trial.gpushare/kept"
KEPT_SECONDS: Final = 3.0
_MERGE: Final = "application/merge-patch+json"


class PodEnds:
    """A thread that works while the context lasts. ``wrong`` says which pods could not be ended.

    A pod with FINALIZER is kept for KEPT_SECONDS longer.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.wrong: list[str] = []
        self._cluster = cluster
        self._due: list[tuple[float, str, str, str]] = []  # when, path, uid, finalizer to remove
        self._changed = threading.Condition()
        self._is_over = False
        self._kubelet = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._kubelet.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._kubelet.join(20)

    def end_later(self, pod: Mapping[str, Any]) -> None:
        """End a pod that is being deleted once its grace period is over."""
        meta, now = pod["metadata"], time.monotonic()
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        at = now + (meta.get("deletionGracePeriodSeconds") or 0)
        due = [(at, path, meta["uid"], "")]
        if FINALIZER in meta.get("finalizers", ()):
            due.append((at + KEPT_SECONDS, path, meta["uid"], FINALIZER))
        with self._changed:
            for each in due:
                heapq.heappush(self._due, each)
            self._changed.notify()

    def _run(self) -> None:
        with self._cluster.api() as api:
            while True:
                with self._changed:
                    if self._is_over:
                        return
                    left = self._due[0][0] - time.monotonic() if self._due else None
                    if left is None or left > 0:
                        self._changed.wait(left)
                        continue
                    due = heapq.heappop(self._due)
                self._end(api, due)

    def _end(self, api: Api, due: tuple[float, str, str, str]) -> None:
        _, path, uid, finalizer = due
        gone: dict[str, Any] = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        try:
            if finalizer:
                body = {"metadata": {"uid": uid, "finalizers": None}}
                api.request("PATCH", path, body, content_type=_MERGE)
            else:
                api.request("DELETE", path, gone)
        except ApiError as err:
            if not err.status:  # the connection was closed
                with self._changed:
                    heapq.heappush(self._due, (time.monotonic() + 0.1, *due[1:]))
            elif err.status not in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}:
                # Otherwise it is gone, or another has its name.
                self.wrong.append(f"a pod could not be ended: {err}")
