"""The live page's data: nodes, Pending pods, gangs and the queue as JSON, and changes (pure).

One encoded text of each is kept for all viewers; unchanged ones are neither encoded nor sent again.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from gpushare.answers.gangs import GangList, GangView
from gpushare.answers.inspect import NodeView
from gpushare.ledger.changes import Changes

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
MOST_PLACED: Final = 500  # pods, of which the places are sent: 20 KB

# First letter of a key; the rest is a node's name, a pod's UID, a gang's key, or nothing.
_NODE, _POD, _GANG, _MORE, _QUEUE = "n", "p", "g", "m", "q"
_NAMES: Final = {
    _NODE: "nodes",
    _POD: "pods",
    _GANG: "gangs",
    _MORE: "moreGangs",
    _QUEUE: "queue",
    f"-{_NODE}": "goneNodes",
    f"-{_POD}": "gonePods",
    f"-{_GANG}": "goneGangs",
}


class PendingPod(msgspec.Struct):
    """``units`` are of all ``cards`` together, 0 if the request cannot be read.

    ``state``: waiting, gated, ending, or refused whatever GPUs there are. ``why`` continues ``POD
    is Pending:``; ``by`` is its source, gpushare or kube-scheduler; both are empty before
    kube-scheduler has tried the pod. ``reasons`` are gpushare's, to number of nodes.
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


class Feed:
    """Keeps the latest text of each node, pod and gang, and what has changed since a revision."""

    def __init__(self, about: msgspec.Struct) -> None:
        self._about = msgspec.json.encode(about)
        self._changes = Changes()
        self._texts: dict[str, bytes] = {}
        self._gangs: set[str] = set()  # their keys

    @property
    def revision(self) -> int:
        """The revision of a viewer that has received everything."""
        return self._changes.now

    def put_node(self, name: str, view: NodeView | None) -> None:
        """Replace a node; None if it no longer exists."""
        self._put(_NODE + name, view)

    def put_pod(self, uid: str, view: PendingPod | None) -> None:
        """Replace a Pending pod; None if it is not Pending."""
        self._put(_POD + uid, view)

    def put_gangs(self, found: GangList) -> Generator[None, None, list[str]]:
        """Replace all gangs in short steps; return the keys of those that are new or changed."""
        gangs = {f"{each.namespace}/{each.source}/{each.name}": each for each in found.gangs}
        for key in self._gangs.difference(gangs):
            self._put(_GANG + key, None)
        self._gangs = set(gangs)
        changed = []
        for key, view in gangs.items():
            yield
            if self._put(_GANG + key, _gang(key, view)):
                changed.append(key)
        if found.left_out or _MORE in self._texts:
            self._put(_MORE, found.left_out)
        return changed

    def put_places(self, found: Iterable[list[str]]) -> None:
        """Replace the places: the uids of the pods at each one, in order."""
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
        return self._keys(_NODE)

    def pods(self) -> list[str]:
        """Return the UIDs of the Pending pods."""
        return self._keys(_POD)

    def events(self, seen: int) -> Iterator[bytes]:
        """Yield the server-sent events that a viewer at revision ``seen`` needs.

        A viewer that has received nothing, or is too far behind, gets everything, between ``begin``
        and ``whole``. Each event has the state at the time it is taken, and about CHUNK_BYTES.
        """
        changed = self._changes.since(seen)
        if changed is not None:
            yield from self._chunks(changed)
            return
        yield event("begin", self._about)
        yield from self._chunks(list(self._texts))
        yield event("whole", b"{}")

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

    def _put(self, key: str, view: msgspec.Struct | list[list[str]] | int | None) -> bool:
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


def last_event(why: str) -> bytes:
    return event("end", msgspec.json.encode({"why": why}))


def event(kind: str, data: bytes) -> bytes:
    """Return a server-sent event with JSON."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


def _gang(key: str, view: GangView) -> Gang:
    return Gang(
        key,
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
