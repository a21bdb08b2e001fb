"""The steps of a simulation, as in ``-o json`` and for all pictures."""

from collections.abc import Sequence
from typing import Final

import msgspec

from gpushare.answers import gang_rows
from gpushare.answers.gangs import GangView
from gpushare.text.amounts import free_gib, needed_gib
from gpushare.text.listed import listed

VERSION: Final = 1
Placed = set[tuple[str, str, str]]  # node, namespace and name of pods


class _View(msgspec.Struct, rename="camel", frozen=True):
    pass


class Share(_View, frozen=True):
    """``units`` that a pod uses of this GPU."""

    namespace: str
    name: str
    units: int


class Unplaced(_View, frozen=True):
    """A bound pod whose GPUs are unknown; ``everywhere``: its units count on each of the node's."""

    namespace: str
    name: str
    units: int
    why: str
    everywhere: bool


class Card(_View, frozen=True):
    """``free`` is what no pod uses; new pods get it unless the GPU has ``marks``."""

    index: int
    uuid: str
    model: str
    health: str
    cordoned: bool
    units: int
    used: int
    free: int
    pods: tuple[Share, ...]

    @property
    def marks(self) -> list[str]:
        """Return why it takes no new pods."""
        return [self.health] * (self.health != "healthy") + ["cordoned"] * self.cordoned


class Node(_View, frozen=True):
    """``closed``: why it takes no new pods, whatever its GPUs have free; else empty.

    ``touched``: something happened here in this step.
    """

    name: str
    units: int
    used: int
    closed: str
    touched: bool
    cards: tuple[Card, ...]
    unplaced: tuple[Unplaced, ...]


class Happened(_View, frozen=True):
    """``what``: placed, waits, refused, bound, deleted, evicted, gave-up, node, namespace.

    ``bound`` is a pod that is on a node by the file; ``gave-up`` one that was deleted while
    Pending. ``text`` of an evicted pod says for whom. ``units`` are of each of ``cards`` (indexes).
    ``waited`` is in seconds, ``gang`` that of the pod.
    """

    what: str
    namespace: str = ""
    name: str = ""
    node: str = ""
    cards: tuple[int, ...] = ()
    units: int = 0
    waited: int = 0
    text: str = ""
    gang: str = ""


class CardWhy(_View, frozen=True):
    """``why`` is empty if the pod's part would fit on the GPU."""

    index: int
    free: int
    why: str


class NodeWhy(_View, frozen=True):
    """``why`` of kube-scheduler's own rules or of the extender's filter.

    Without one, ``room`` of the pods fit there.
    """

    name: str
    why: str
    cards: tuple[CardWhy, ...]
    room: int = 0


class WaitingPod(_View, frozen=True):
    namespace: str
    name: str
    since: int


class Waiting(_View, frozen=True):
    """Pods with equal requests that are Pending for the same reasons.

    ``sentence`` continues ``POD is Pending:`` as in explain; ``says`` is the error if no node could
    ever run them. ``reasons`` to number of nodes; ``nodes`` are
    the nearest to fitting, ``nodes_left_out`` counts the others. ``gang`` is that of the pods, and
    ``own`` what the sentence says of a pod by itself.
    """

    pods: tuple[WaitingPod, ...]
    priority: int
    units: int
    cards: int
    units_per_card: int
    says: str
    sentence: str
    reasons: dict[str, int]
    nodes: tuple[NodeWhy, ...]
    nodes_left_out: int
    gang: str = ""
    own: str = ""

    @property
    def namespace(self) -> str:
        return self.pods[0].namespace


class QuotaUse(_View, frozen=True):
    """What a namespace uses of its quota; of that for a ``model`` of GPU, if it is not empty."""

    namespace: str
    model: str
    used: int
    limit: int


class Step(_View, frozen=True):
    """The cluster after all that happened at ``at`` (seconds).

    ``title`` names a step that stands for more than a time; else it is empty. ``fragmentation``:
    the share of free units in pieces too small for pods like those that run, 0 to 1.
    """

    number: int
    at: int
    title: str
    unit_mib: int = msgspec.field(name="unitMiB")
    units: int
    used: int
    largest_free: int
    fragmentation: float
    happened: tuple[Happened, ...]
    nodes: tuple[Node, ...]
    waiting: tuple[Waiting, ...]
    gangs: tuple[GangView, ...] = ()
    quotas: tuple[QuotaUse, ...] = ()


class GainPart(_View, frozen=True):
    """The GPUs that pods share in one way today: ``sharing`` is other_systems.node_gpus.Sharing.

    It is ``memory`` for GPUs that are shared by memory already. ``pods`` use ``used`` of the GPUs,
    or of their ``replicas``. ``fit_today`` and ``fit``: how many notebooks would fit in addition,
    as the GPUs are shared today and by memory.
    """

    sharing: str
    gpus: int
    replicas: int
    pods: int
    used: int
    fit_today: int
    fit: int


class Assumed(_View, frozen=True):
    """The same if the ``pods`` with whole GPUs requested memory of each of them instead.

    ``by`` says where the amounts are from: ``example``, ``option`` or ``usage``. ``mib_per_gpu`` is
    None if only measured amounts count, which ``measured`` of the pods have. Pods keep their GPUs
    whole if nothing says what they use (``unknown``), if their GPUs have less than the amount
    (``smaller``), or if they would find no room (``not_placed``). All would use ``gpus`` instead of
    ``gpus_today``. Of the ``pending`` pods that request whole GPUs, ``started`` would start.
    Then ``free_gpus`` would have no pod, those of ``free_nodes`` whole nodes among them.
    """

    by: str
    mib_per_gpu: int | None = msgspec.field(name="mibPerGPU")
    pods: int
    measured: int
    unknown: int
    smaller: int
    not_placed: int
    gpus_today: int
    gpus: int
    pending: int
    started: int
    free_gpus: int = msgspec.field(name="freeGPUs")
    free_nodes: int
    free_gpus_of_nodes: int = msgspec.field(name="freeGPUsOfNodes")
    largest_mib: int = msgspec.field(name="largestMiB")
    fit: int


class Gain(_View, frozen=True):
    """What sharing by memory would gain on nodes that do not do so, in notebooks of a size.

    Pods are those of ``namespace``, all if it is empty. ``pending`` wait for whole GPUs.
    """

    notebook_mib: int = msgspec.field(name="notebookMiB")
    namespace: str
    pending: int
    parts: tuple[GainPart, ...]
    assumed: Assumed | None


class Tail(_View, frozen=True):
    """What is known after the last step. ``unknown``: what of GPUs is not understood."""

    unknown: tuple[str, ...]
    gain: Gain | None


class Head(_View, frozen=True):
    """The settings of all steps.

    ``left_out`` is what the scenario has, or would need, and is not simulated: a cluster may decide
    otherwise. ``not_simulated`` is what is not in any scenario.
    """

    version: int
    unit_mib: int = msgspec.field(name="unitMiB")
    node_policy: str
    card_policy: str
    left_out: tuple[str, ...]
    not_simulated: tuple[str, ...]
    ignored: tuple[str, ...]


def left_out(texts: Sequence[str]) -> str:
    return f"Not simulated here: {'; '.join(texts)}."


def placed(step: Step) -> Placed:
    return {(e.node, e.namespace, e.name) for e in step.happened if e.what == "placed"}


def nearest(step: Step, most: int) -> tuple[Node, ...]:
    """Return at most so many nodes, preferably those with changes, in their order."""
    if len(step.nodes) <= most:
        return step.nodes
    order = sorted(step.nodes, key=lambda node: (not node.touched, not node.used))
    chosen = {node.name for node in order[:most]}
    return tuple(node for node in step.nodes if node.name in chosen)


def lines(step: Step) -> list[str]:
    """Describe in a line each thing that happened; all members of a gang that wait in one."""
    found = []
    for row in gang_rows.rows(step.happened, lambda each: each.what in {"waits", "refused"}):
        first = row[0]
        if len(row) == 1:
            found.append(_described(first, step.unit_mib))
            continue
        subject = gang_rows.subject(short(first.namespace, first.gang), len(row))
        refused = next((each for each in row if each.what == "refused"), None)
        why = f"! {subject} cannot run: pod {refused.name}: {refused.text}" if refused else ""
        found.append(why or f"? {subject} is Pending")
    return found


def _described(happened: Happened, unit_mib: int) -> str:
    """Describe in a line one thing that happened."""
    cards = ", ".join(map(str, happened.cards))
    on = f"{happened.node}, GPU{'s' * (len(happened.cards) > 1)} {cards}"
    where = on if happened.cards else happened.node
    amount = needed(happened.units, unit_mib) + " each" * (len(happened.cards) > 1)
    if not happened.units:
        amount = "no GPU memory"
    after = f" after {clock(happened.waited)}" if happened.waited else ""
    name = short(happened.namespace, happened.name)
    match happened.what:
        case "placed":
            return f"+ {name} to {where} ({amount}){after}"
        case "bound":
            text = f": {happened.text}" if happened.text else ""
            return f"+ {name} is on {where} ({amount}){text}"
        case "deleted":
            return f"- {name} is deleted from {where} ({amount})"
        case "evicted":
            return f"- {name} is evicted from {where} ({amount}) for {happened.text}"
        case "namespace":
            return f"* namespace {happened.namespace} {happened.text}"
        case "gave-up":
            return f"- {name} is deleted while Pending{after}"
        case "node":
            return f"* node {happened.node} {happened.text}"
        case "refused":
            return f"! {name} cannot run: {happened.text}"
        case _:
            return f"? {name} is Pending"


def free(units: int, unit_mib: int) -> str:
    """Write for people what is free or in all."""
    return free_gib(units * unit_mib)


def needed(units: int, unit_mib: int) -> str:
    """Write for people what is used or requested."""
    return needed_gib(units * unit_mib)


def needs(group: Waiting, unit_mib: int) -> str:
    """Describe what Pending pods request."""
    amount = needed(group.units_per_card, unit_mib)
    if group.cards > 1:
        return f"requests {amount} on each of {group.cards} GPUs of one node"
    return f"requests {amount} on one GPU"


def pending(row: Sequence[Waiting], most: int = 3) -> str:
    """Name the pods that are Pending for the same reasons, or their gang."""
    pods = [pod for group in row for pod in group.pods]
    if gang := row[0].gang:
        return f"{gang_rows.subject(short(pods[0].namespace, gang), len(pods))} is Pending"
    names = [short(pod.namespace, pod.name) for pod in pods]
    return f"{listed(names, most)} {'are' if len(names) > 1 else 'is'} Pending"


def why(step: Step, row: Sequence[Waiting]) -> str:
    """Return what pods of a row wait for, in one paragraph."""
    first = row[0]
    if not first.gang:
        return first.sentence
    key = first.namespace, first.gang
    said = next((each.text for each in step.gangs if (each.namespace, each.name) == key), "")
    return gang_rows.text(said, [(group.pods[0].name, group.own) for group in row])


def room(node: NodeWhy, group: Waiting) -> str:
    """Describe a node on which there is room, although the pods are Pending."""
    return f"has room for {node.room} of its members" if group.gang else "has room for it"


def quota(found: QuotaUse, unit_mib: int) -> str:
    used, limit = needed(found.used, unit_mib), free(found.limit, unit_mib)
    of = f" of {found.model}" if found.model else ""
    return f"quota of namespace {found.namespace}{of}: {used} of {limit} used"


def short(namespace: str, name: str) -> str:
    """Name an object without its namespace if that is the default one."""
    return name if namespace in {"", "default"} else f"{namespace}/{name}"


def clock(seconds: int) -> str:
    """Format a time as in a file: 90 is 1m30s."""
    hours, rest = divmod(seconds, 3600)
    minutes, rest = divmod(rest, 60)
    parts = ((hours, "h"), (minutes, "m"), (rest, "s"))
    return "".join(f"{number}{letter}" for number, letter in parts if number) or "0s"


def unit_name(unit_mib: int) -> str:
    """Return a unit's name as for ``--memory-unit``."""
    return f"{unit_mib} MiB" if unit_mib % 1024 else f"{unit_mib // 1024} GiB"
