"""The live page's data: nodes, Pending pods, gangs, quotas and the queue as JSON (pure).

One encoded text of each is kept for all viewers; unchanged ones are neither encoded nor sent again.
A viewer of one namespace gets what is about it, and of others only amounts. That is cut out of the
same texts while they are sent, so that no number of namespaces takes memory.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from gpushare.answers.gangs import GangView
from gpushare.answers.inspect import NodeView, without_pods_of_others
from gpushare.answers.queue.quotas import QuotaList, QuotaView
from gpushare.ledger.changes import Changes
from gpushare.quota.reasons import NAMESPACE_ENDS

CHUNK_BYTES: Final = 32 * 1024  # of one event, so that no step of sending takes long
NEVER: Final = -1  # the revision of a viewer that has received nothing
HEARTBEAT: Final = b":\n\n"
PATH: Final = "changes"  # of the stream, below the extender's prefix
HEADERS: Final = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Accel-Buffering": "no",  # for a proxy: pass on each event at once
}

MOST_GANGS: Final = 500
MOST_PLACED: Final = 500  # pods, of which the positions are sent: 20 KB

# First letter of a key; the rest is a node's name, namespace and UID of a pod, a gang's key, which
# begins with its namespace, the namespace of a quota, or nothing.
_NODE, _POD, _GANG, _QUOTA, _MORE, _QUEUE = "n", "p", "g", "u", "m", "q"
_OF_NAMESPACES: Final = frozenset({_POD, _GANG, _QUOTA})
_LEAST_BYTES: Final = 64  # that a key counts in an event, also if it is left out
_NAMES: Final = {
    _NODE: "nodes",
    _POD: "pods",
    _GANG: "gangs",
    _QUOTA: "quotas",
    _MORE: "moreGangs",
    _QUEUE: "queue",
    f"-{_NODE}": "goneNodes",
    f"-{_POD}": "gonePods",
    f"-{_GANG}": "goneGangs",
    f"-{_QUOTA}": "goneQuotas",
}


class PendingPod(msgspec.Struct):
    """``units`` are of all ``cards`` together, 0 if the request cannot be read.

    A simulation's pod with whole GPUs has ``cards`` and no units.

    ``state``: waiting, gated, ending, or refused whatever GPUs there are. ``why`` continues ``POD
    is Pending:``; ``by`` is its source, gpushare or kube-scheduler; both are empty before
    kube-scheduler has tried the pod. ``reasons`` are gpushare's, to number of nodes. ``gang`` is
    the key of the pod's gang, and ``own`` what ``why`` says besides the sentence about it.
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
    gang: str = ""
    own: str = ""


class Gang(msgspec.Struct):
    """A gang; the fields are those of GangView that do not change with time. ``key`` is unique."""

    key: str
    namespace: str
    name: str
    phase: str
    minimum: int
    members: int
    bound: int
    zone: str
    created: str
    text: str


class About(msgspec.Struct, rename="camel", omit_defaults=True):
    """What is the same for everything shown.

    ``unit_mib`` is the unit of Pending pods' requests; a node has its own. ``usage``: the page may
    ask what pods really use.
    """

    unit_mib: int = msgspec.field(name="unitMiB")
    usage: bool = False


_read_node: Final = msgspec.json.Decoder(NodeView).decode
_read_places: Final = msgspec.json.Decoder(list[list[str]]).decode
_read_more: Final = msgspec.json.Decoder(dict[str, int]).decode


class Feed:
    """Keeps the latest text of each node, pod, gang and quota, and what has changed."""

    def __init__(self, about: msgspec.Struct) -> None:
        self._about = msgspec.json.encode(about)
        self._changes = Changes()
        self._texts: dict[str, bytes] = {}
        self._unnamed: dict[str, bytes] = {}  # of pods whose text names pods of other namespaces
        self._pods: dict[str, str] = {}  # key by UID
        self._gangs: set[str] = set()  # their keys
        self._quotas: set[str] = set()  # their namespaces

    @property
    def revision(self) -> int:
        """The revision of a viewer that has received everything."""
        return self._changes.now

    def put_node(self, name: str, view: NodeView | None) -> None:
        """Replace a node; None if it no longer exists."""
        self._put(_NODE + name, view)

    def put_pod(self, uid: str, view: PendingPod | None, unnamed: PendingPod | None = None) -> None:
        """Replace a Pending pod; None if it is not Pending.

        ``unnamed`` is the same without names of pods in other namespaces, if it has some.
        """
        if view is None:
            if (key := self._pods.pop(uid, None)) is not None:
                self._unnamed.pop(key, None)
                self._put(key, None)
            return
        key = self._pods[uid] = f"{_POD}{view.namespace}/{uid}"
        text = None if unnamed is None else msgspec.json.encode(unnamed)
        if not self._put(key, view) and text != self._unnamed.get(key):
            self._changes.add(key)
        if text is None:
            self._unnamed.pop(key, None)
        else:
            self._unnamed[key] = text

    def put_gangs(
        self, found: Iterable[GangView], more: Mapping[str, int]
    ) -> Generator[None, None, list[str]]:
        """Replace all gangs in short steps; return the keys of those that are new or changed.

        ``more`` counts those that are not among them, by namespace.
        """
        gangs = {each.key: each for each in found}
        for key in self._gangs.difference(gangs):
            self._put(_GANG + key, None)
        self._gangs = set(gangs)
        changed = []
        for key, view in gangs.items():
            yield
            if self._put(_GANG + key, _gang(view)):
                changed.append(key)
        if more or _MORE in self._texts:
            self._put(_MORE, more)
        return changed

    def put_quotas(self, found: QuotaList) -> None:
        """Replace all quotas; namespaces without one are left out."""
        shown = {each.namespace: each for each in found.quotas if _has_quota(each)}
        for name in self._quotas.difference(shown):
            self._put(_QUOTA + name, None)
        self._quotas = set(shown)
        for name, view in shown.items():
            self._put(_QUOTA + name, view)

    def put_places(self, found: Iterable[list[str]]) -> None:
        """Replace the queue: the uids of the pods at each position, in order."""
        shown: list[list[str]] = []
        left = MOST_PLACED
        for uids in found:
            if left <= 0:
                break
            shown.append(uids[:left])
            left -= len(uids)
        if shown or _QUEUE in self._texts:
            self._put(_QUEUE, shown)

    def nodes(self) -> list[str]:
        return [key[1:] for key in self._texts if key[0] == _NODE]

    def pods(self) -> list[str]:
        """Return the UIDs of the Pending pods."""
        return list(self._pods)

    def events(self, seen: int, only: str = "") -> Iterator[bytes]:
        """Yield the server-sent events that a viewer at revision ``seen`` needs.

        A viewer of the namespace ``only`` gets neither names nor pods of others.

        A viewer that has received nothing, or is too far behind, gets everything, between ``begin``
        and ``whole``. Each event has the state at the time it is taken, and about CHUNK_BYTES.
        """
        changed = self._changes.since(seen)
        if changed is not None:
            yield from self._chunks(changed, only)
            return
        yield event("begin", self._about)
        yield from self._chunks(list(self._texts), only)
        yield event("whole", b"{}")

    def _chunks(self, keys: Iterable[str], only: str) -> Iterator[bytes]:
        found: dict[str, list[bytes]] = {}
        size = 0
        for key in keys:
            text, kind = self._texts.get(key), key[0]
            if only and kind in _OF_NAMESPACES and _namespace(key) != only:
                size += _LEAST_BYTES
            elif text is None:
                name = key.rpartition("/")[2] if kind == _POD else key[1:]
                found.setdefault(f"-{kind}", []).append(msgspec.json.encode(name))
                size += max(_LEAST_BYTES, len(name))
            else:
                found.setdefault(kind, []).append(self._of(key, text, only) if only else text)
                size += len(text)
            if size >= CHUNK_BYTES:
                yield _change(found) if found else HEARTBEAT
                found, size = {}, 0
        if found:
            yield _change(found)

    def _of(self, key: str, text: bytes, only: str) -> bytes:
        """Return what a viewer of one namespace may read of a text."""
        if key[0] == _NODE:
            return msgspec.json.encode(without_pods_of_others(_read_node(text), only))
        if key[0] == _MORE:
            more = _read_more(text)
            return msgspec.json.encode({only: more[only]} if only in more else {})
        if key[0] == _QUEUE:
            begin = f"{_POD}{only}/"
            return msgspec.json.encode(
                [
                    [uid for uid in uids if self._pods.get(uid, "").startswith(begin)]
                    for uids in _read_places(text)
                ]
            )
        return self._unnamed.get(key, text)

    def _put(
        self, key: str, view: msgspec.Struct | list[list[str]] | Mapping[str, int] | None
    ) -> bool:
        """Replace a text; return whether it is another one."""
        text = None if view is None else msgspec.json.encode(view)
        if text == self._texts.get(key):
            return False
        if text is None:
            del self._texts[key]
        else:
            self._texts[key] = text
        self._changes.add(key)
        return True


def _namespace(key: str) -> str:
    return key[1:].partition("/")[0]


def _has_quota(view: QuotaView) -> bool:
    has_one = view.limit is not None or bool(view.models)
    return has_one or view.problem not in {"", NAMESPACE_ENDS.text}


def last_event(why: str) -> bytes:
    return event("end", msgspec.json.encode({"why": why}))


def event(kind: str, data: bytes) -> bytes:
    """Return a server-sent event with JSON."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


def _gang(view: GangView) -> Gang:
    return Gang(
        view.key,
        view.namespace,
        view.name,
        view.phase,
        view.minimum,
        view.members,
        view.bound,
        view.zone,
        view.created,
        view.text,
    )


def _change(found: Mapping[str, list[bytes]]) -> bytes:
    parts = [b'"%s":[%s]' % (_NAMES[kind].encode(), b",".join(found[kind])) for kind in found]
    return event("changes", b"{%s}" % b",".join(parts))
