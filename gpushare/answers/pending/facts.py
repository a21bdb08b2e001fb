"""The cause for which a pod is Pending, and the facts about it, as JSON (pure)."""

from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from gpushare.answers.gangs import GangView
from gpushare.answers.pending.ends import Ending
from gpushare.answers.preemptions import Evicting, Victim
from gpushare.answers.queue.over_quota import OverQuota

TOO_LITTLE: Final = "too little allocatable"  # begins a reason of the cause RESOURCES

# Causes that no event in the cluster ends, except that nodes or GPUs are added or changed.
UNREADABLE: Final = "request"
NO_NODES: Final = "noNodes"
TOO_LARGE: Final = "tooLarge"
TOO_MANY_CARDS: Final = "tooManyGPUs"
SETUP: Final = "setup"
MODEL: Final = "model"
UUIDS: Final = "uuids"
ISOLATION: Final = "isolation"
UNSEEN: Final = "unseen"  # by this caller, who may read only the pod
SCHEDULER: Final = "scheduler"  # does not ask the extender
WITHOUT: Final = "noGPUMemory"  # a member of a gang that requests none
# States of the pod.
BINDING: Final = "binding"
SLOT: Final = "slot"  # kept for it by the plan of its gang
ENDING: Final = "ending"
EVICTING: Final = "evicting"  # pods of lower priority, for it
GATED: Final = "gated"
QUOTA: Final = "quota"  # of its namespace leaves too little
# States of the cluster.
EXCLUDED: Final = "excluded"
FITS: Final = "fits"
RESOURCES: Final = "resources"
CLOSED: Final = "gpusClosed"
ROOM: Final = "room"

N = TypeVar("N", Ending, Victim)


class _View(msgspec.Struct, rename="camel", omit_defaults=True):
    pass


class Free(_View):
    """The most that is free on each of as many GPUs of one node as the pod wants.

    Without free memory there is neither ``node`` nor ``cards``.
    ``reserved`` is what is reserved there for other pods. ``limited``: more is free on GPUs that
    the pod may not use.
    """

    mib: int = msgspec.field(name="MiB")
    node: str
    cards: list[int]
    reserved_mib: int = msgspec.field(name="reservedMiB", default=0)
    limited: bool = False


class Offer(_View):
    """The largest request that fits now: ``units`` in all ``containers``, ``mib`` of each GPU."""

    units: int
    mib: int = msgspec.field(name="MiB")
    containers: int = 1


class Pending(_View):
    """Why a pod is Pending. Which fields are set depends on ``cause``; all are facts of one moment.

    ``needs_units`` and ``needs_mib`` are of each of ``gpus`` GPUs. ``limit`` is the MiB or the
    number of GPUs that no node exceeds. ``counts`` are reasons, to numbers of nodes, or of GPUs for
    ``gpusClosed``; ``barred`` counts in the same way the nodes that have room but may not be used.
    ``text`` comes from the pod: the error in its request, its models, or kube-scheduler's message.
    ``fits_if`` and ``ends`` are about GPU memory, and about what pods with GPU memory leave of the
    rest. ``ends`` names some of ``ends_count`` pods: any one of them, or if ``ends_together`` all
    of them have to end. ``ends_more``: there may be more such pods.
    ``not_judged``: what kube-scheduler's last message has besides. ``gates`` are scheduling gates.
    ``nominated`` is the node where kube-scheduler makes room. ``scheduler`` is the pod's
    schedulerName while no scheduler has said anything about it. ``gang`` is the pod's gang, whose
    members start together; everything else is about the pod by itself. ``held``: gpushare's gate
    keeps it from kube-scheduler, and no other gate. ``gates_stay``: the extender may not remove it.
    ``evicting`` are the pods of lower priority that the extender evicts for the pod or its gang.
    ``kept`` are GPUs with room for it that is kept for pods that come before it.
    ``over_quota``: what the quota of its namespace lacks. ``behind_first``: it must not pass the
    first in the queue, which has no room. ``can_split``: two GPUs of a node are large enough.
    """

    cause: str
    needs_units: int = 0
    needs_mib: int = msgspec.field(name="needsMiB", default=0)
    gpus: int = msgspec.field(name="GPUs", default=0)
    limit: int = 0
    counts: dict[str, int] = {}
    barred: dict[str, int] = {}
    text: str = ""
    most_free: Free | None = None
    fits_if: Offer | None = None
    ends: list[Ending] = []
    ends_count: int = 0
    ends_together: bool = False
    ends_more: bool = False
    not_judged: str = ""
    gates: str = ""
    nominated: str = ""
    scheduler: str = ""
    place: Free | None = None
    kept: Free | None = None
    gang: GangView | None = None
    held: bool = False
    gates_stay: bool = False
    evicting: Evicting | None = None
    over_quota: OverQuota | None = None
    behind_first: bool = False
    can_split: bool = False


def without_names(found: Pending, namespace: str) -> Pending:
    """Return the facts without the names of pods outside ``namespace``."""

    def hidden(pods: Iterable[N]) -> list[N]:
        return [
            each if each.namespace == namespace else replace(each, namespace="", name="")
            for each in pods
        ]

    evicting = found.evicting
    if evicting is not None:
        evicting = replace(evicting, pods=hidden(evicting.pods))
    return replace(found, ends=hidden(found.ends), evicting=evicting)
