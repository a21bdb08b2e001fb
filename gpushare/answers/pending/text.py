"""Write in one sentence why a pod is Pending and what would help (pure).

This is the only text about it: explain, the Event, the live page and inspect all show it. It says
nothing that is not in ``Pending``, so names that were removed there are not in the sentence.
"""

from typing import Final, NamedTuple

from gpushare.answers import preemptions
from gpushare.answers.gang_text import GATES_STAY, PHASES_OF_EVICTIONS
from gpushare.answers.gangs import Phase
from gpushare.answers.pending import facts
from gpushare.answers.pending.facts import Free, Pending
from gpushare.answers.pending.phrases import (
    MOST_OF_MESSAGE,
    amount_of,
    compared,
    gpus,
    on_gpus,
    place_of,
    quoted,
    reasons,
)
from gpushare.answers.pending.remedies import what_helps
from gpushare.answers.queue import over_quota
from gpushare.answers.queue.text import behind
from gpushare.contract import KUEUES_GATES, LABEL_CARD_COUNT
from gpushare.text.amounts import MIB_PER_GIB, needed_gib
from gpushare.text.counted import counted
from gpushare.text.cut import cut, cut_name
from gpushare.text.listed import all_of

MOST_BYTES: Final = 1000  # of an Event's message; the API server accepts 1024


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
    return cut(f"it is a member of gang {cut_name(gang)}. {found.gang}{own}", MOST_BYTES)


def parts(found: Pending) -> Parts:
    """Return the parts of the sentence."""
    if found.gang is None:
        return Parts("", cut(_own(found), MOST_BYTES))
    text = found.gang.text
    if found.evicting is not None and found.gang.phase in PHASES_OF_EVICTIONS:
        return Parts(f"{text} {preemptions.details(found.evicting)}".rstrip(), "")
    return Parts(text, "" if _is_said(found) else _own(found))


def _is_said(found: Pending) -> bool:
    """Return whether the sentence about the gang says all that keeps the pod waiting."""
    if found.gang is None or found.gang.phase in _PHASES_OF_SINGLES:
        return False
    is_of_all = found.cause == facts.QUOTA and found.gang.phase == Phase.WAITING_FOR_ROOM
    # Of a member without GPU memory only what kube-scheduler does or says is news.
    is_quiet = found.cause == facts.WITHOUT and not (found.text or found.nominated)
    return found.cause == facts.FITS or is_of_all or is_quiet


def _own(found: Pending) -> str:
    text = _CAUSES[found.cause](found)
    if found.not_judged:
        text += f" kube-scheduler last said: {quoted(found.not_judged)}"
    if found.gates and found.cause not in {facts.GATED, facts.ENDING}:
        text += f" {_gated(found)}"
    if found.gates_stay and found.gang is None:
        text += f" {GATES_STAY}"
    if found.nominated:
        text += f" kube-scheduler is making room for it on {cut_name(found.nominated)}."
    return text


def _unreadable(found: Pending) -> str:
    return f"no node can grant its request: {quoted(found.text)}"


def _unseen(found: Pending) -> str:
    amount = f"{counted(found.needs_units, 'unit')} of GPU memory"
    text = f"requests {amount_of(found) if found.needs_mib else on_gpus(found, amount)}"
    if found.text:
        return f"{text}; kube-scheduler last said: {quoted(found.text)}"
    if found.scheduler:
        return f"{text}; {_not_looked_at(found)}"
    hidden = "pods of other namespaces" if found.needs_mib else "the nodes"
    return f"{text}; {hidden} are not visible here."


def _not_looked_at(found: Pending) -> str:
    return f"no scheduler named {cut_name(found.scheduler)} has looked at it yet."


def _scheduler(found: Pending) -> str:
    return (
        f"its scheduler {cut_name(found.scheduler)} does not ask gpushare about it, so it gets no "
        "GPU memory: write the spec.schedulerName of a scheduler that does, or let this one call "
        "the extender."
    )


def _without(found: Pending) -> str:
    text = "requests no GPU memory"
    if found.held:
        return _held(found, text, "; gpushare removes its scheduling gate with those of its gang")
    if found.text:
        return f"{text}; kube-scheduler last said: {quoted(found.text)}"
    return f"{text}."


def _no_nodes(_: Pending) -> str:
    return "no node shares GPUs; in a cluster, `gpushare doctor` shows why."


def _too_large(found: Pending) -> str:
    needs, largest = compared(found.needs_mib, found.limit)
    text = f"requests {on_gpus(found, needs)}, larger than any GPU (the largest has {largest})."
    split = f" Two GPUs of a node are large enough: set the label {_label(2)}."
    return f"{text}{what_helps(found)}{split if found.can_split else ''}"


def _label(gpus: int) -> str:
    return f'`{LABEL_CARD_COUNT}: "{gpus}"`'


def _too_many(found: Pending) -> str:
    text = f"requests {amount_of(found)}; no node has "
    if found.limit:
        most = counted(found.limit, "GPU")
        return f"{text}more than {most}. Request at most {most} (label {_label(found.limit)})."
    helps = what_helps(found) or " Request less on each, or fewer GPUs."
    return f"{text}{found.gpus} GPUs that large.{helps}"


def _setup(found: Pending) -> str:
    return f"cannot run on any node with shared GPUs: {reasons(found.counts)}."


def _model(found: Pending) -> str:
    models = cut(found.text, MOST_OF_MESSAGE)
    if not found.limit:
        which = "a GPU" if found.gpus == 1 else f"{found.gpus} GPUs"
        return f"no node has {which} of a model that it accepts ({models})."
    if found.gpus > 1:
        none = f"no node has {found.gpus} GPUs that large of a model that it accepts ({models})"
        return f"requests {amount_of(found)}; {none}.{what_helps(found)}"
    needs, largest = compared(found.needs_mib, found.limit)
    which = f"any GPU of a model that it accepts ({models}: the largest has {largest})"
    return f"requests {on_gpus(found, needs)}, larger than {which}.{what_helps(found)}"


def _uuids(found: Pending) -> str:
    text = "card-uuids-only and card-uuids-not leave too few GPUs that are large enough"
    return f"requests {amount_of(found)}; its annotations {text}.{what_helps(found)}"


def _isolation(found: Pending) -> str:
    text = f"requests {amount_of(found)} that the driver limits (gpushare.aliyun.com/isolation)"
    why = cut(found.text, MOST_OF_MESSAGE)
    which = "a GPU" if found.gpus == 1 else f"{found.gpus} GPUs"
    return f"{text}; no node limits memory on {which} that large: {why}.{what_helps(found)}"


def _binding(_: Pending) -> str:
    return "its GPU is reserved, and the outcome of the binding is not known yet."


def _slot(found: Pending) -> str:
    place = found.place or Free(0, "", [])
    what = f"{gpus(place.cards)} of" if place.cards else "room on"
    are = "are" if len(place.cards) > 1 else "is"
    text = f"{what} {cut_name(place.node)} {are} reserved for it"
    if found.held:
        return _held(found, text, ", and gpushare removes its scheduling gate now")
    text += ", but kube-scheduler has not placed it there yet"
    return f"{text}; it last said: {quoted(found.text)}" if found.text else f"{text}."


def _held(found: Pending, text: str, release: str) -> str:
    return f"{text}." if found.gates_stay else f"{text}{release}."


def _evicting(found: Pending) -> str:
    return "" if found.evicting is None else preemptions.text(found.evicting)


def _ending(_: Pending) -> str:
    return "it is being deleted and was never bound."


def _gated(found: Pending) -> str:
    gates = quoted(found.gates)
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
    text = f"requests {amount_of(found)}; no node with large enough GPUs may take it"
    return f"{text}: {reasons(found.counts)}.{what_helps(found)}"


def _fits(found: Pending) -> str:
    where = place_of(found.place) if found.place is not None else ""
    text = f"its GPU memory fits now ({where})"
    if found.behind_first:
        return f"{text}, but {behind(0)}"
    if found.held:
        return _held(found, text, ", and gpushare removes its scheduling gate soon")
    if found.scheduler:
        return f"{text}, but {_not_looked_at(found)}"
    text += ", but kube-scheduler has not placed it there yet"
    if found.text:
        return f"{text}; it last said: {quoted(found.text)}"
    return f"{text}."


def _resources(found: Pending) -> str:
    nodes = counted(sum(found.counts.values()), "node")
    has = "has" if sum(found.counts.values()) == 1 else "have"
    text = f"requests {amount_of(found)}, which {nodes} {has} free, but cannot run there"
    is_short = any(reason.startswith(facts.TOO_LITTLE) for reason in found.counts)
    remedy = " Request less of it, or wait until pods there end." if is_short else ""
    return f"{text}: {reasons(found.counts)}.{remedy}"


def _closed(found: Pending) -> str:
    number = sum(found.counts.values())
    states = all_of([f"{each} {state}" for state, each in sorted(found.counts.items())])
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
    return f"requests {amount_of(found)}; {closed}{_barred(found)}.{what_helps(found)}"


def _room(found: Pending) -> str:
    free = found.most_free
    if found.kept is not None:
        kept = f"the room for it ({place_of(found.kept)}) is reserved or claimed for pods before it"
        return f"requests {amount_of(found)}; {kept}{_barred(found)}.{what_helps(found)}"
    if free is None or not free.mib:
        limited = " that it may use" if free is not None and free.limited else ""
        which = f"no GPU{limited} has"
        if found.gpus > 1:
            which = f"no node has {found.gpus} GPUs{limited} with"
        text = f"requests {amount_of(found)}; {which} free memory{_barred(found)}."
        return text + what_helps(found)
    needs, most = compared(found.needs_mib, free.mib)
    one = "one GPU" if found.gpus == 1 else f"each of {found.gpus} GPUs of one node"
    limited = " that it may use" if free.limited else ""
    where = place_of(free)
    if free.reserved_mib:
        where += f", where {needed_gib(free.reserved_mib)} {_is(free)} reserved for other pods"
    text = f"requests {on_gpus(found, needs)}; the most free on {one}{limited} is {most} ({where})"
    return f"{text}{_barred(found)}.{what_helps(found)}"


def _is(free: Free) -> str:
    return "are" if free.reserved_mib != MIB_PER_GIB else "is"


def _barred(found: Pending) -> str:
    number = sum(found.barred.values())
    if not number:
        return ""
    has = "node with room is" if number == 1 else "nodes with room are"
    return f"; {number} {has} excluded: {reasons(found.barred)}"


# In the other phases a member that fits by itself waits for its gang.
_PHASES_OF_SINGLES: Final = frozenset({Phase.STARTING, Phase.PLACED})

_CAUSES: Final = {
    facts.UNREADABLE: _unreadable,
    facts.UNSEEN: _unseen,
    facts.SCHEDULER: _scheduler,
    facts.WITHOUT: _without,
    facts.NO_NODES: _no_nodes,
    facts.TOO_LARGE: _too_large,
    facts.TOO_MANY_CARDS: _too_many,
    facts.SETUP: _setup,
    facts.MODEL: _model,
    facts.UUIDS: _uuids,
    facts.ISOLATION: _isolation,
    facts.BINDING: _binding,
    facts.SLOT: _slot,
    facts.ENDING: _ending,
    facts.EVICTING: _evicting,
    facts.GATED: _gated,
    facts.QUOTA: _quota,
    facts.EXCLUDED: _excluded,
    facts.FITS: _fits,
    facts.RESOURCES: _resources,
    facts.CLOSED: _closed,
    facts.ROOM: _room,
}
