"""Why a quota leaves nothing for a pod or gang, as JSON and as a sentence (pure)."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final

import msgspec
from msgspec.structs import replace

from gpushare.cards.model import Request
from gpushare.contract import ANNOTATION_QUOTA
from gpushare.placement.reasons import Reason
from gpushare.quota.reasons import NAMESPACE_ENDS, OVER_MODEL_QUOTA, OVER_QUOTA, WRONG_QUOTA
from gpushare.text.amounts import Amounts, to_write
from gpushare.text.counted import counted
from gpushare.text.cut import cut, cut_name

_MOST_OF_PROBLEM: Final = 300


class Limit(StrEnum):
    """What leaves nothing: the quota of all GPUs, or of a model, or that it cannot be used.

    ``UNREADABLE``: nothing is placed until somebody corrects the quota. ``ENDING``: the namespace
    is being deleted.
    """

    UNITS = "units"
    MODEL = "model"
    UNREADABLE = "unreadable"
    ENDING = "ending"


LIMITS: Final = {
    OVER_QUOTA.text: Limit.UNITS,
    OVER_MODEL_QUOTA.text: Limit.MODEL,
    WRONG_QUOTA.text: Limit.UNREADABLE,
    NAMESPACE_ENDS.text: Limit.ENDING,
}


class Hanging(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """A pod that is still there after its grace period, which ended ``since``.

    ``lost`` says what its node is that does not answer; the pod does not count then.
    """

    pod: str
    node: str
    since: str
    lost: str = ""


class OverQuota(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """``limit`` is a Limit. ``used``, ``quota`` and ``asked`` are units, for UNITS and MODEL.

    ``used`` is without what the pod or gang itself has. ``model`` is that of the GPUs, empty if it
    is not known which one. ``problem`` says why the quota cannot be read. ``who`` asks: a pod or a
    gang; a pod's request is split over its ``containers``, and over ``gpus`` in equal parts.
    ``hanging`` are a few of ``hanging_count`` pods that hang, those that count first. A unit
    has ``unit_mib`` MiB, 0 if that is not known.
    """

    namespace: str
    limit: str
    who: str = "pod"
    used: int = 0
    quota: int = 0
    asked: int = 0
    containers: int = 1
    gpus: int = 1
    model: str = ""
    problem: str = ""
    hanging: tuple[Hanging, ...] = ()
    hanging_count: int = 0
    unit_mib: int = msgspec.field(name="unitMiB", default=0)


def of_request(found: OverQuota, request: Request) -> OverQuota:
    """Add what a pod requests."""
    containers, gpus = request.containers_with_units, request.card_count
    return replace(found, asked=request.units, containers=containers, gpus=gpus)


def of_models(
    namespace: str, request: Request, unit_mib: int, full: Mapping[str, tuple[int, int]]
) -> Mapping[str, OverQuota]:
    """Return what a pod lacks of quotas for models; ``full`` has used and allowed units of each."""
    limit = Limit.MODEL.value
    return {
        model: of_request(
            OverQuota(namespace, limit, used=used, quota=quota, model=model, unit_mib=unit_mib),
            request,
        )
        for model, (used, quota) in full.items()
    }


def is_over(reason: Reason | None) -> bool:
    """Return whether a reason is about the quota of a namespace."""
    return reason is not None and reason.text in LIMITS


def sentence(found: OverQuota) -> str:
    """Return what is missing and what would help; it begins with a small letter."""
    return " ".join((_what_lacks(found), *_hanging(found)))


def _hanging(found: OverQuota) -> Iterator[str]:
    for each in found.hanging:
        which = f", which is {each.lost}," if each.lost else ""
        counts = "no longer counts" if each.lost else "still counts"
        yield (f"Pod {each.pod} hangs Terminating on node {each.node}{which or ','} and {counts}.")
    more = found.hanging_count - len(found.hanging)
    if more:
        yield f"{counted(more, 'more pod')} of the namespace {'hangs' if more == 1 else 'hang'}."


def _what_lacks(found: OverQuota) -> str:
    match found.limit:
        case Limit.ENDING:
            return f"{_namespace(found)} is being deleted: nothing starts there any more."
        case Limit.UNREADABLE:
            problem = cut(found.problem, _MOST_OF_PROBLEM)
            return f"the quota of {_namespace(found)} cannot be read, so its pods wait: {problem}."
        case Limit.MODEL if not found.model:
            return (
                f"{_namespace(found)} has too little left of its quotas for models of GPUs; it "
                "waits until pods there end, or a quota is raised."
            )
    model = cut_name(found.model)
    of = f" of {model}" if model else ""
    if not found.quota:
        return f"{_namespace(found)} has a quota of 0{of}: it waits until the quota is raised."
    amounts = Amounts(found.unit_mib)
    asked, quota = amounts.needed(found.asked), f"{amounts.free(found.quota)}{of}"
    if found.asked > found.quota:
        less, most = "less", found.quota // found.gpus * found.gpus
        if found.who == "pod" and most:
            parts = " over its containers" if found.containers > 1 else ""
            less = f"{amounts.free(most)} or less ({to_write(most)}{parts})"
        return (
            f"the {found.who} requests {asked}, and the whole quota of {_namespace(found)} is "
            f"{quota}: request {less}, or have the quota raised "
            f"(`{model}{'=' if model else ''}{found.asked}` in `{ANNOTATION_QUOTA}`)."
        )
    missing = amounts.needed(found.asked + found.used - found.quota)
    return (
        f"{_namespace(found)} uses {amounts.needed(found.used)} of its quota of {quota}, "
        f"and the {found.who} requests {asked}: it waits until pods there that use {missing} "
        "end, or the quota is raised."
    )


def _namespace(found: OverQuota) -> str:
    return f"namespace {found.namespace}"
