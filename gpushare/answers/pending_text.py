"""Write in one sentence why a pod is Pending and what would help (pure).

This is the only text about it: explain, the Event, the live page and inspect all show it. It says
nothing that is not in ``Pending``, so names that were removed there are not in the sentence.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from gpushare.answers import pending, preemptions
from gpushare.answers.gang_text import GATES_STAY, PHASES_OF_EVICTIONS
from gpushare.answers.gangs import Phase
from gpushare.answers.pending import Free, Pending
from gpushare.answers.pending_ends import Ending
from gpushare.answers.queue import over_quota
from gpushare.answers.queue.text import behind
from gpushare.contract import KUEUES_GATES, LABEL_CARD_COUNT
from gpushare.text.amounts import MIB_PER_GIB, free_gib, needed_gib, to_write
from gpushare.text.counted import counted

MOST_BYTES: Final = 1000  # of an Event's message; the API server accepts 1024
_MOST_OF_NAME: Final = 80  # a pod's namespace and name may have 317 characters
_MOST_OF_MESSAGE: Final = 300
_REASONS_SAID: Final = 3
_WORTH_SAYING: Final = 20  # an offer of less than this part of the request helps nobody
_TENTH: Final = MIB_PER_GIB // 10


class Parts(NamedTuple):
    """What is said of the pod's gang, if it has one, and of the pod by itself; one may be empty."""

    gang: str
    own: str


def sentence(found: Pending) -> str:
    """Return the sentence without its subject: it continues ``POD is Pending:``.

    That of the pod's gang comes first. The pod by itself follows where it is a reason of its own.
    """
    return joined(found.gang.name if found.gang is not None else "", parts(found))


def joined(gang: str, found: Parts) -> str:
    """Return the sentence that has both; ``gang`` is the name of the pod's gang, or empty."""
    if not gang:
        return found.own
    own = f" This pod: {found.own}" if found.own else ""
    return _cut(f"it is a member of gang {_short(gang)}. {found.gang}{own}", MOST_BYTES)


def parts(found: Pending) -> Parts:
    """Return the parts of the sentence."""
    if found.gang is None:
        return Parts("", _cut(_own(found), MOST_BYTES))
    text = found.gang.text
    if found.evicting is not None and found.gang.phase in PHASES_OF_EVICTIONS:
        return Parts(f"{text} {preemptions.details(found.evicting)}".rstrip(), "")
    return Parts(text, "" if _is_said(found) else _own(found))


def _is_said(found: Pending) -> bool:
    """Return whether the sentence about the gang says all that keeps the pod waiting."""
    if found.gang is None or found.gang.phase in _PHASES_OF_SINGLES:
        return False
    is_of_all = found.cause == pending.QUOTA and found.gang.phase == Phase.WAITING_FOR_ROOM
    # Of a member without GPU memory only what kube-scheduler does or says is news.
    is_quiet = found.cause == pending.WITHOUT and not (found.text or found.nominated)
    return found.cause == pending.FITS or is_of_all or is_quiet


def _own(found: Pending) -> str:
    text = _CAUSES[found.cause](found)
    if found.not_judged:
        text += f" kube-scheduler last said: {_quoted(found.not_judged)}"
    if found.gates and found.cause not in {pending.GATED, pending.ENDING}:
        text += f" {_gated(found)}"
    if found.gates_stay and found.gang is None:
        text += f" {GATES_STAY}"
    if found.nominated:
        text += f" kube-scheduler is making room for it on {_short(found.nominated)}."
    return text


def gpus(indexes: list[int]) -> str:
    """Return ``GPU 0``, or ``GPUs 0 and 1``."""
    if len(indexes) == 1:
        return f"GPU {indexes[0]}"
    return f"GPUs {_and([str(index) for index in indexes])}"


def _unreadable(found: Pending) -> str:
    return f"no node can grant its request: {_quoted(found.text)}"


def _unseen(found: Pending) -> str:
    amount = f"{counted(found.needs_units, 'unit')} of GPU memory"
    text = f"requests {_amount(found) if found.needs_mib else _on(found, amount)}"
    if found.text:
        return f"{text}; kube-scheduler last said: {_quoted(found.text)}"
    if found.scheduler:
        return f"{text}; {_not_looked_at(found)}"
    hidden = "pods of other namespaces" if found.needs_mib else "the nodes"
    return f"{text}; {hidden} are not visible here."


def _not_looked_at(found: Pending) -> str:
    return f"no scheduler named {_short(found.scheduler)} has looked at it yet."


def _scheduler(found: Pending) -> str:
    return (
        f"its scheduler {_short(found.scheduler)} does not ask gpushare about it, so it gets no "
        "GPU memory: write the spec.schedulerName of a scheduler that does, or let this one call "
        "the extender."
    )


def _without(found: Pending) -> str:
    text = "requests no GPU memory"
    if found.held:
        return _held(found, text, "; gpushare removes its scheduling gate with those of its gang")
    if found.text:
        return f"{text}; kube-scheduler last said: {_quoted(found.text)}"
    return f"{text}."


def _no_nodes(_: Pending) -> str:
    return "no node shares GPUs; in a cluster, `gpushare doctor` shows why."


def _too_large(found: Pending) -> str:
    needs, largest = _compared(found.needs_mib, found.limit)
    text = f"requests {_on(found, needs)}, larger than any GPU (the largest has {largest})."
    split = f" Two GPUs of a node are large enough: set the label {_label(2)}."
    return f"{text}{_helps(found)}{split if found.can_split else ''}"


def _label(gpus: int) -> str:
    return f'`{LABEL_CARD_COUNT}: "{gpus}"`'


def _too_many(found: Pending) -> str:
    text = f"requests {_amount(found)}; no node has "
    if found.limit:
        most = counted(found.limit, "GPU")
        return f"{text}more than {most}. Request at most {most} (label {_label(found.limit)})."
    helps = _helps(found) or " Request less on each, or fewer GPUs."
    return f"{text}{found.gpus} GPUs that large.{helps}"


def _setup(found: Pending) -> str:
    return f"cannot run on any node with shared GPUs: {_reasons(found.counts)}."


def _model(found: Pending) -> str:
    models = _cut(found.text, _MOST_OF_MESSAGE)
    if not found.limit:
        which = "a GPU" if found.gpus == 1 else f"{found.gpus} GPUs"
        return f"no node has {which} of a model that it accepts ({models})."
    if found.gpus > 1:
        none = f"no node has {found.gpus} GPUs that large of a model that it accepts ({models})"
        return f"requests {_amount(found)}; {none}.{_helps(found)}"
    needs, largest = _compared(found.needs_mib, found.limit)
    which = f"any GPU of a model that it accepts ({models}: the largest has {largest})"
    return f"requests {_on(found, needs)}, larger than {which}.{_helps(found)}"


def _uuids(found: Pending) -> str:
    text = "card-uuids-only and card-uuids-not leave too few GPUs that are large enough"
    return f"requests {_amount(found)}; its annotations {text}.{_helps(found)}"


def _isolation(found: Pending) -> str:
    text = f"requests {_amount(found)} that the driver limits (gpushare.aliyun.com/isolation)"
    why = _cut(found.text, _MOST_OF_MESSAGE)
    which = "a GPU" if found.gpus == 1 else f"{found.gpus} GPUs"
    return f"{text}; no node limits memory on {which} that large: {why}.{_helps(found)}"


def _binding(_: Pending) -> str:
    return "its GPU is reserved, and the outcome of the binding is not known yet."


def _slot(found: Pending) -> str:
    place = found.place or Free(0, "", [])
    what = f"{gpus(place.cards)} of" if place.cards else "room on"
    are = "are" if len(place.cards) > 1 else "is"
    text = f"{what} {_short(place.node)} {are} reserved for it"
    if found.held:
        return _held(found, text, ", and gpushare removes its scheduling gate now")
    text += ", but kube-scheduler has not placed it there yet"
    return f"{text}; it last said: {_quoted(found.text)}" if found.text else f"{text}."


def _held(found: Pending, text: str, release: str) -> str:
    return f"{text}." if found.gates_stay else f"{text}{release}."


def _evicting(found: Pending) -> str:
    return "" if found.evicting is None else preemptions.text(found.evicting)


def _ending(_: Pending) -> str:
    return "it is being deleted and was never bound."


def _gated(found: Pending) -> str:
    gates = _quoted(found.gates)
    text = f"kube-scheduler ignores it until its scheduling gates are removed: {gates}"
    if KUEUES_GATES in found.gates:
        text += (
            " Kueue removes its gates when it admits the pod: `kubectl describe workloads` says "
            "what it waits for."
        )
    return text


def _quota(found: Pending) -> str:
    return "" if found.over_quota is None else over_quota.sentence(found.over_quota)


def _excluded(found: Pending) -> str:
    text = f"requests {_amount(found)}; no node with large enough GPUs may take it"
    return f"{text}: {_reasons(found.counts)}.{_helps(found)}"


def _fits(found: Pending) -> str:
    where = _place(found.place) if found.place is not None else ""
    text = f"its GPU memory fits now ({where})"
    if found.behind_first:
        return f"{text}, but {behind(0)}"
    if found.held:
        return _held(found, text, ", and gpushare removes its scheduling gate soon")
    if found.scheduler:
        return f"{text}, but {_not_looked_at(found)}"
    text += ", but kube-scheduler has not placed it there yet"
    if found.text:
        return f"{text}; it last said: {_quoted(found.text)}"
    return f"{text}."


def _resources(found: Pending) -> str:
    nodes = counted(sum(found.counts.values()), "node")
    has = "has" if sum(found.counts.values()) == 1 else "have"
    text = f"requests {_amount(found)}, which {nodes} {has} free, but cannot run there"
    is_short = any(reason.startswith(pending.TOO_LITTLE) for reason in found.counts)
    remedy = " Request less of it, or wait until pods there end." if is_short else ""
    return f"{text}: {_reasons(found.counts)}.{remedy}"


def _closed(found: Pending) -> str:
    number = sum(found.counts.values())
    states = _and([f"{each} {state}" for state, each in sorted(found.counts.items())])
    if found.gpus > 1:
        closed = f"no node has {found.gpus} GPUs that are large enough and take new pods ({states})"
    elif found.barred:
        closed = f"no GPU that is large enough and that it may use takes new pods ({states})"
    elif number == 1:
        closed = f"the only GPU that is large enough is {next(iter(found.counts))}"
    elif len(found.counts) == 1:
        closed = f"the {number} GPUs that are large enough are {next(iter(found.counts))}"
    else:
        closed = f"no GPU that is large enough takes new pods ({states})"
    return f"requests {_amount(found)}; {closed}{_barred(found)}.{_helps(found)}"


def _room(found: Pending) -> str:
    free = found.most_free
    if found.kept is not None:
        kept = f"the room for it ({_place(found.kept)}) is reserved or claimed for pods before it"
        return f"requests {_amount(found)}; {kept}{_barred(found)}.{_helps(found)}"
    if free is None or not free.mib:
        limited = " that it may use" if free is not None and free.limited else ""
        which = f"no GPU{limited} has"
        if found.gpus > 1:
            which = f"no node has {found.gpus} GPUs{limited} with"
        text = f"requests {_amount(found)}; {which} free memory{_barred(found)}."
        return text + _helps(found)
    needs, most = _compared(found.needs_mib, free.mib)
    one = "one GPU" if found.gpus == 1 else f"each of {found.gpus} GPUs of one node"
    limited = " that it may use" if free.limited else ""
    where = _place(free)
    if free.reserved_mib:
        where += f", where {needed_gib(free.reserved_mib)} {_is(free)} reserved for other pods"
    text = f"requests {_on(found, needs)}; the most free on {one}{limited} is {most} ({where})"
    return f"{text}{_barred(found)}.{_helps(found)}"


def _is(free: Free) -> str:
    return "are" if free.reserved_mib != MIB_PER_GIB else "is"


def _barred(found: Pending) -> str:
    number = sum(found.barred.values())
    if not number:
        return ""
    has = "node with room is" if number == 1 else "nodes with room are"
    return f"; {number} {has} excluded: {_reasons(found.barred)}"


def _helps(found: Pending) -> str:
    """Return the remedy as a sentence of its own; empty if nothing is known to help."""
    helps = []
    if found.fits_if is not None and found.fits_if.mib * _WORTH_SAYING >= found.needs_mib:
        _, most = _compared(found.needs_mib, found.fits_if.mib)
        each = " on each" if found.gpus > 1 else ""
        parts = " over its containers" if found.fits_if.containers > 1 else ""
        helps.append(
            f"if it requests {most} or less{each} ({to_write(found.fits_if.units)}{parts})"
        )
    if found.ends_count:
        helps.append(_when(found))
    # Other rules of kube-scheduler may exclude the nodes with room.
    fits = "Its GPU memory fits" if found.not_judged else "It fits"
    return f" {fits} {', or '.join(helps)}.{_update(found)}" if helps else ""


def _update(found: Pending) -> str:
    """Return what to change if only an update of the pod's own Deployment could make room."""
    if not found.ends or not all(each.updated for each in found.ends):
        return ""
    return (
        " But the update of its Deployment ends the old pod only when this one is Ready: set "
        "strategy.type to Recreate, or rollingUpdate.maxSurge to 0."
    )


def _when(found: Pending) -> str:
    number, ends = found.ends_count, found.ends
    names = [_name(each) for each in ends if each.name]
    if number == 1:
        only = ends[0]
        name = _name(only) if only.name else "a pod in another namespace"
        return f"when {name} ends{_soon(only)}"
    if found.ends_together:
        listed = names[:2] if number == len(names[:2]) else names[:1]
        more = [f"{number - len(listed)} more"] if names and number > len(listed) else []
        named = f" ({_and([*listed, *more])})" if names else ""
        return f"when {number} pods end{named}"
    least = "at least " if found.ends_more else ""
    text = f"when one of {least}{number} pods ends"
    for each in ends:
        if each.name:
            return f"{text}, for example {_name(each)}{_soon(each)}"
    return text


def _soon(pod: Ending) -> str:
    if pod.terminating:
        return ", which is being deleted"
    return ", which kube-scheduler may evict for it" if pod.lower else ""


def _place(free: Free) -> str:
    return f"{_short(free.node)}, {gpus(free.cards)}"


def _amount(found: Pending) -> str:
    return _on(found, needed_gib(found.needs_mib))


def _on(found: Pending, amount: str) -> str:
    if found.gpus == 1:
        return f"{amount} on one GPU"
    return f"{found.gpus} GPUs of one node with {amount} on each"


def _compared(needed: int, free: int) -> tuple[str, str]:
    """Return both amounts; in exact MiB if rounding would hide or exaggerate a small difference."""
    if 0 < needed - free < _TENTH and (needed % MIB_PER_GIB or free % MIB_PER_GIB):
        return f"{needed} MiB", f"{free} MiB"
    return needed_gib(needed), free_gib(free)


def _reasons(counts: Mapping[str, int]) -> str:
    """Return the most frequent reasons, with their numbers of nodes if there are several."""
    listed = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    if len(listed) == 1:
        return _cut(listed[0][0], _MOST_OF_MESSAGE)
    most = _MOST_OF_MESSAGE // _REASONS_SAID
    said = [f"{_cut(text, most)} ({counted(n, 'node')})" for text, n in listed[:_REASONS_SAID]]
    left = len(listed) - _REASONS_SAID
    return "; ".join([*said, *([counted(left, "more reason")] if left > 0 else [])])


def _and(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _name(pod: Ending) -> str:
    return _short(f"{pod.namespace}/{pod.name}")


def _short(name: str) -> str:
    return _cut(name, _MOST_OF_NAME)


def _quoted(text: str) -> str:
    text = _cut(text, _MOST_OF_MESSAGE)
    return text if text.endswith(".") else f"{text}."


def _cut(text: str, most: int) -> str:
    """Return at most so many bytes of a text, with ``...`` if some are missing."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= most:
        return text
    return encoded[: most - 3].decode(errors="ignore") + "..."


# In the other phases a member that fits by itself waits for its gang.
_PHASES_OF_SINGLES: Final = frozenset({Phase.STARTING, Phase.PLACED})

_CAUSES: Final = {
    pending.UNREADABLE: _unreadable,
    pending.UNSEEN: _unseen,
    pending.SCHEDULER: _scheduler,
    pending.WITHOUT: _without,
    pending.NO_NODES: _no_nodes,
    pending.TOO_LARGE: _too_large,
    pending.TOO_MANY_CARDS: _too_many,
    pending.SETUP: _setup,
    pending.MODEL: _model,
    pending.UUIDS: _uuids,
    pending.ISOLATION: _isolation,
    pending.BINDING: _binding,
    pending.SLOT: _slot,
    pending.ENDING: _ending,
    pending.EVICTING: _evicting,
    pending.GATED: _gated,
    pending.QUOTA: _quota,
    pending.EXCLUDED: _excluded,
    pending.FITS: _fits,
    pending.RESOURCES: _resources,
    pending.CLOSED: _closed,
    pending.ROOM: _room,
}
