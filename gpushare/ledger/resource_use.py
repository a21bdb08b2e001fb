"""Sum what the pods of each node request: CPU, memory, pods, extended resources (pure).

Pods without GPU memory count too: kube-scheduler gives a node's CPU to any pod.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import msgspec

from gpushare.ledger.changes import Changes
from gpushare.objects.pod_requests import Requests

_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


class _Node(msgspec.Struct, gc=False, eq=False):
    """``unknown`` is the number of pods whose requests cannot be read.

    ``cpu`` and ``memory`` are those of others, as in ``put``.
    """

    pods: dict[str, "_Shared"] = {}
    sums: dict[str, int] = {}
    unknown: int = 0
    cpu: int = 0
    memory: int = 0


@dataclass(slots=True)
class _Shared:
    """One object for all ``pods`` with equal requests: 50,000 pods have a few hundred."""

    requests: Requests | None
    is_other: bool
    pods: int = 0


class ResourceUse:
    """The requests of live bound pods. Amounts are in thousandths, as in ``Slot``.

    A pod that is being deleted counts until it is gone. ``changes`` has the names of nodes.
    """

    def __init__(self) -> None:
        self.changes = Changes()
        self._nodes: dict[str, _Node] = {}
        self._node_of: dict[str, str] = {}
        self._shared: dict[tuple[Requests | None, bool], _Shared] = {}

    def put(
        self, uid: str, node: str, requests: Requests | None, *, is_other: bool = False
    ) -> None:
        """Count a pod on a node, instead of what it counted before.

        None: its requests cannot be read, and it is unknown what is free on the node. ``is_other``:
        it requests no GPU memory, and its node was chosen by kube-scheduler's scores.
        """
        before = self._node_of.get(uid)
        if before is not None:
            known = self._nodes[before].pods[uid]
            if (before, known.requests, known.is_other) == (node, requests, is_other):
                return
            self.remove(uid)
        entry = self._nodes.get(node)
        if entry is None:
            entry = self._nodes[node] = _Node()
        self._node_of[uid] = node
        shared = entry.pods[uid] = self._share(requests, is_other=is_other)
        _add(entry, shared, 1)
        self.changes.add(node)

    def remove(self, uid: str) -> None:
        """Count a pod no longer; nothing happens if it is not known."""
        node = self._node_of.pop(uid, None)
        if node is None:
            return
        entry = self._nodes[node]
        shared = entry.pods.pop(uid)
        _add(entry, shared, -1)
        self._unshare(shared)
        if not entry.pods:
            del self._nodes[node]
        self.changes.add(node)

    def used(self, node: str) -> Mapping[str, int] | None:
        """Return what the pods of a node request, by resource; None if that is unknown.

        The mapping is valid until the next change; resources that no pod requests are absent.
        """
        entry = self._nodes.get(node)
        if entry is None:
            return _NOTHING
        return entry.sums if not entry.unknown else None

    def of_others(self, node: str) -> tuple[int, int]:
        """Return the CPU and memory that others, as in ``put``, request of a node.

        Pods whose requests cannot be read do not count.
        """
        entry = self._nodes.get(node)
        return (entry.cpu, entry.memory) if entry is not None else (0, 0)

    def recounted(self, node: str) -> Mapping[str, int] | None:
        """Return what ``used`` should return, added up pod by pod."""
        fresh = _Node()
        for shared in self._nodes.get(node, fresh).pods.values():
            _add(fresh, shared, 1)
        return fresh.sums if not fresh.unknown else None

    def node_of(self, uid: str) -> str:
        """Return the node on which a pod counts, or an empty string."""
        return self._node_of.get(uid, "")

    def requests_of(self, uid: str) -> Requests:
        """Return what a pod uses of its node; empty if it does not count or cannot be read."""
        node = self._node_of.get(uid)
        return (self._nodes[node].pods[uid].requests or ()) if node is not None else ()

    def uids(self) -> Iterator[str]:
        """Return the pods that count."""
        return iter(self._node_of)

    def __len__(self) -> int:
        return len(self._node_of)

    def nodes(self) -> Iterator[str]:
        """Return the nodes on which pods count."""
        return iter(self._nodes)

    def _share(self, requests: Requests | None, *, is_other: bool) -> _Shared:
        """Return the object that other pods with equal requests have."""
        shared = self._shared.get((requests, is_other))
        if shared is None:
            shared = self._shared[requests, is_other] = _Shared(requests, is_other)
        shared.pods += 1
        return shared

    def _unshare(self, shared: _Shared) -> None:
        shared.pods -= 1
        if not shared.pods:
            del self._shared[shared.requests, shared.is_other]


def _add(entry: _Node, shared: _Shared, sign: int) -> None:
    if shared.requests is None:
        entry.unknown += sign
        return
    if shared.is_other:
        asked = dict(shared.requests)
        entry.cpu += sign * asked.get("cpu", 0)
        entry.memory += sign * asked.get("memory", 0)
    sums = entry.sums
    for name, amount in shared.requests:
        left = sums.get(name, 0) + sign * amount
        if left:
            sums[name] = left
        else:
            sums.pop(name, None)
