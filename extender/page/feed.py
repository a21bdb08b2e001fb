"""What the live page is told: each node and each pod that waits, as text, and what changed (pure).

One text of each is kept for all who watch; what has not changed is neither encoded nor sent again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

import msgspec

from extender.watch.waiting import Waiting
from gpushare.answers import inspect
from gpushare.answers.explain import said
from gpushare.cards.model import Request
from gpushare.errors import RequestError
from gpushare.ledger.changes import Changes
from gpushare.ledger.ledger import Ledger
from gpushare.objects.model import Pod

CHUNK_BYTES: Final = 32 * 1024  # of one event, so that no step of sending takes long
NEVER: Final = -1  # seen by who has seen nothing

_NODE, _POD = "n", "p"  # first letter of a key; the rest is a node's name or a pod's uid


class Known(Protocol):
    """The cluster as the extender knows it."""

    @property
    def ledger(self) -> Ledger: ...
    @property
    def unreadable(self) -> Mapping[str, str]: ...
    @property
    def waiting(self) -> Waiting: ...
    @property
    def queue(self) -> Changes: ...

    def pod(self, uid: str) -> Pod | None: ...
    def pod_uids(self) -> list[str]: ...
    def request_of(self, pod: Pod) -> Request: ...


class WaitingPod(msgspec.Struct):
    """``units`` are of all ``cards`` together, 0 where they cannot be read.

    ``state``: waiting, gated, ending, or refused whatever the cluster has. ``by`` says whose words
    ``why`` are: gpushare's or kube-scheduler's; empty where nobody has said anything. ``reasons``
    are ours, to number of nodes.
    """

    uid: str
    namespace: str
    name: str
    units: int
    cards: int
    priority: int
    created: str
    state: str
    why: str
    by: str
    reasons: dict[str, int]


class Live:
    """``leads`` says whether kube-schedulers ask here: only then are our own reasons the latest."""

    def __init__(self, known: Known, leads: Callable[[], bool]) -> None:
        self._known, self._leads = known, leads
        self._did_lead = leads()
        self._told = Changes()
        self._texts: dict[str, bytes] = {}
        self._nodes_seen = self._pods_seen = NEVER

    @property
    def now(self) -> int:
        """What somebody has seen who is told all of what is known now."""
        return self._told.now

    def look(self) -> Iterator[None]:
        """Learn what has changed in the cluster since the last look, in steps that are short.

        What a look that was given up has not come to is looked at by the next one.
        """
        ledger, leads = self._known.ledger, self._leads()
        now = ledger.changes.now
        names: Iterable[str] | None = ledger.changes.since(self._nodes_seen)
        if names is None:
            held = {share.node for share in ledger.shares()}
            names = {*ledger.nodes(), *self._known.unreadable, *held, *self._keys(_NODE)}
        for name in names:
            yield
            self._put(_NODE + name, self._node(name))
        self._nodes_seen, now = now, self._known.queue.now
        uids: Iterable[str] | None = self._known.queue.since(self._pods_seen)
        if uids is None:
            uids = [*self._known.pod_uids(), *self._keys(_POD)]
        elif leads != self._did_lead:
            uids = {*uids, *self._keys(_POD)}
        for uid in uids:
            yield
            self._put(_POD + uid, self._pod(uid, leads))
        self._pods_seen, self._did_lead = now, leads

    def events(self, seen: int) -> Iterator[bytes]:
        """What to tell somebody who has seen so much, as server-sent events of CHUNK_BYTES or so.

        Who is too far behind, or has seen nothing, is told everything, between ``begin`` and
        ``whole``. Each event has what is true when it is taken.
        """
        changed = self._told.since(seen)
        if changed is not None:
            yield from self._changes(changed)
            return
        yield _event("begin", b"{}")
        yield from self._changes(list(self._texts))
        yield _event("whole", b"{}")

    def _changes(self, keys: Iterable[str]) -> Iterator[bytes]:
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
        self._told.add(key)

    def _node(self, name: str) -> bytes | None:
        known = self._known
        view = inspect.view_node(known.ledger, name, known.unreadable.get(name, ""))
        return None if view is None else msgspec.json.encode(view)

    def _pod(self, uid: str, leads: bool) -> bytes | None:
        pod = self._known.pod(uid)
        if pod is None or pod.node:
            return None
        meta = pod.metadata
        view = WaitingPod(
            uid=uid,
            namespace=meta.namespace,
            name=meta.name,
            units=0,
            cards=0,
            priority=pod.priority,
            created=meta.creation_timestamp or "",
            state="waiting",
            why="",
            by="",
            reasons={},
        )
        self._say(pod, view, leads)
        return msgspec.json.encode(view)

    def _say(self, pod: Pod, view: WaitingPod, leads: bool) -> None:
        try:
            request = self._known.request_of(pod)
        except RequestError as err:
            view.state, view.why, view.by = "refused", str(err), "gpushare"
            return
        view.units, view.cards = request.units, request.card_count
        if pod.metadata.deletion_timestamp is not None:
            view.state, view.why = "ending", "about to end without having been bound"
            return
        if gates := [gate.name for gate in pod.spec.scheduling_gates or ()]:
            view.state, view.why = "gated", f"scheduling gates: {', '.join(gates)}"
            return
        asked = self._known.waiting.of(pod.uid) if leads else None
        condition = pod.condition("PodScheduled")
        if asked is not None and asked.reasons:
            view.why, view.by = said(asked.offered, asked.reasons, None), "gpushare"
            view.reasons = asked.reasons
        elif condition is not None and condition.status == "False" and condition.message:
            view.why, view.by = condition.message, "kube-scheduler"


_NAMES: Final = {_NODE: "nodes", _POD: "pods", f"-{_NODE}": "goneNodes", f"-{_POD}": "gonePods"}


def _change(found: Mapping[str, list[bytes]]) -> bytes:
    parts = [b'"%s":[%s]' % (_NAMES[kind].encode(), b",".join(found[kind])) for kind in found]
    return _event("changes", b"{%s}" % b",".join(parts))


def _event(kind: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


def ending(why: str) -> bytes:
    """The last event of a stream that is ended from here."""
    return _event("end", msgspec.json.encode({"why": why}))


HEARTBEAT: Final = b":\n\n"
