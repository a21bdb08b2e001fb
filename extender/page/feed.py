"""The live page's data: every node and every pending pod as JSON, and what changed (pure).

One encoded text of each is kept for all viewers; unchanged ones are neither encoded nor sent again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from extender.decisions.cluster_state import ClusterState
from gpushare.answers import inspect
from gpushare.answers.explain import said
from gpushare.errors import RequestError
from gpushare.ledger.changes import Changes
from gpushare.objects.model import Pod

CHUNK_BYTES: Final = 32 * 1024  # of one event, so that no step of sending takes long
NEVER: Final = -1  # the revision of a viewer that has received nothing
HEARTBEAT: Final = b":\n\n"

_NODE, _POD = "n", "p"  # first letter of a key; the rest is a node's name or a pod's UID
_NAMES: Final = {_NODE: "nodes", _POD: "pods", f"-{_NODE}": "goneNodes", f"-{_POD}": "gonePods"}


class PendingPod(msgspec.Struct):
    """``units`` are of all ``cards`` together, 0 if the request cannot be read.

    ``state``: waiting, gated, ending, or refused whatever GPUs there are. ``by`` is the source of
    ``why``: gpushare or kube-scheduler; empty if there is no reason yet. ``reasons`` are
    gpushare's, to number of nodes.
    """

    uid: str
    namespace: str
    name: str
    priority: int
    created: str
    units: int = 0
    cards: int = 0
    state: str = "waiting"
    why: str = ""
    by: str = ""
    reasons: dict[str, int] = {}


class Feed:
    """``leads`` returns whether kube-schedulers call this replica: only then are gpushare's reasons
    the latest.
    """

    def __init__(self, state: ClusterState, leads: Callable[[], bool]) -> None:
        self._state, self._leads = state, leads
        self._did_lead = leads()
        self._changes = Changes()
        self._texts: dict[str, bytes] = {}
        self._nodes_seen = self._pods_seen = NEVER

    @property
    def revision(self) -> int:
        """The revision of a viewer that has received everything."""
        return self._changes.now

    def update(self) -> Iterator[None]:
        """Take in what has changed in the cluster since the last update, in short steps.

        The next update takes in what an abandoned one left out.
        """
        state, leads = self._state, self._leads()
        ledger, now = state.ledger, state.ledger.changes.now
        names: Iterable[str] | None = ledger.changes.since(self._nodes_seen)
        if names is None:
            with_shares = {share.node for share in ledger.shares()}
            names = {*ledger.nodes(), *state.unreadable, *with_shares, *self._keys(_NODE)}
        for name in names:
            yield
            self._put(_NODE + name, self._node(name))
        self._nodes_seen, now = now, state.pods.changes.now
        uids: Iterable[str] | None = state.pods.changes.since(self._pods_seen)
        if uids is None:
            uids = [*state.pods.uids(), *self._keys(_POD)]
        elif leads != self._did_lead:
            uids = {*uids, *self._keys(_POD)}
        for uid in uids:
            yield
            self._put(_POD + uid, self._pod(uid, leads))
        self._pods_seen, self._did_lead = now, leads

    def events(self, seen: int) -> Iterator[bytes]:
        """Yield the server-sent events that a viewer at revision ``seen`` needs.

        A viewer that has received nothing, or is too far behind, gets everything, between ``begin``
        and ``whole``. Each event has the state at the time it is taken, and about CHUNK_BYTES.
        """
        changed = self._changes.since(seen)
        if changed is not None:
            yield from self._chunks(changed)
            return
        yield _event("begin", b"{}")
        yield from self._chunks(list(self._texts))
        yield _event("whole", b"{}")

    def _chunks(self, keys: Iterable[str]) -> Iterator[bytes]:
        found: dict[str, list[bytes]] = {}
        size = 0
        for key in keys:
            text, kind = self._texts.get(key), key[0]
            if text is None:
                kind, text = f"-{kind}", msgspec.json.encode(key[1:])
            found.setdefault(kind, []).append(text)
            size += len(text)
            if size >= CHUNK_BYTES:
                yield _change(found)
                found, size = {}, 0
        if found:
            yield _change(found)

    def _keys(self, kind: str) -> list[str]:
        return [key[1:] for key in self._texts if key[0] == kind]

    def _put(self, key: str, text: bytes | None) -> None:
        if text == self._texts.get(key):
            return
        if text is None:
            del self._texts[key]
        else:
            self._texts[key] = text
        self._changes.add(key)

    def _node(self, name: str) -> bytes | None:
        state = self._state
        view = inspect.view_node(state.ledger, name, state.unreadable.get(name, ""))
        return None if view is None else msgspec.json.encode(view)

    def _pod(self, uid: str, leads: bool) -> bytes | None:
        pod = self._state.pod(uid)
        if pod is None or pod.node:
            return None
        meta = pod.metadata
        view = PendingPod(
            uid, meta.namespace, meta.name, pod.priority, meta.creation_timestamp or ""
        )
        self._add_state(pod, view, leads)
        return msgspec.json.encode(view)

    def _add_state(self, pod: Pod, view: PendingPod, leads: bool) -> None:
        try:
            request = self._state.request_of(pod)
        except RequestError as err:
            view.state, view.why, view.by = "refused", str(err), "gpushare"
            return
        view.units, view.cards = request.units, request.card_count
        if pod.metadata.deletion_timestamp is not None:
            view.state, view.why = "ending", "the pod is being deleted and was never bound"
            return
        if gates := [gate.name for gate in pod.spec.scheduling_gates or ()]:
            view.state, view.why = "gated", f"scheduling gates: {', '.join(gates)}"
            return
        record = self._state.pods.get(pod.uid) if leads else None
        asked = record.asked if record is not None else None
        condition = pod.condition("PodScheduled")
        if asked is not None and asked.reasons:
            view.why, view.by = said(asked.offered, asked.reasons, None), "gpushare"
            view.reasons = asked.reasons
        elif condition is not None and condition.status == "False" and condition.message:
            view.why, view.by = condition.message, "kube-scheduler"


def last_event(why: str) -> bytes:
    return _event("end", msgspec.json.encode({"why": why}))


def _change(found: Mapping[str, list[bytes]]) -> bytes:
    parts = [b'"%s":[%s]' % (_NAMES[kind].encode(), b",".join(found[kind])) for kind in found]
    return _event("changes", b"{%s}" % b",".join(parts))


def _event(kind: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)
