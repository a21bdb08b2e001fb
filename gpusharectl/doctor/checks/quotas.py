"""Check that the quotas of namespaces can be read, are enforced, and fit the cluster (pure)."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from gpushare.contract import ANNOTATION_QUOTA, RESOURCE_MEMORY
from gpushare.text.counted import counted
from gpusharectl.doctor.checks.findings import Check, DoctorFinding, problem, unchecked, warning
from gpusharectl.doctor.facts import subjects
from gpusharectl.doctor.facts.cluster import EXTENDER, LISTS_NAMESPACES, Facts, Unknown
from gpusharectl.doctor.facts.shared_nodes import inventories, units_of

_LISTED: Final = 3
_WRITE: Final = f"kubectl annotate --overwrite namespace {{about}} {ANNOTATION_QUOTA}="

QUOTA_UNREADABLE = problem(
    "QuotaUnreadable",
    "no pod of the namespace that requests GPU memory is placed, because nobody knows its limit",
    f"write units, and units of a model where it is limited: {_WRITE}'64,Tesla T4=16'; without a "
    f"limit: kubectl annotate namespace {{about}} {ANNOTATION_QUOTA}-",
    page="queue.md#quota",
)
QUOTA_NOT_ENFORCED = problem(
    "QuotaNotEnforced",
    "quotas and queued namespaces stay as the extender read them last, and nothing is limited once "
    "it restarts",
    "apply gpushare's rights again (helm upgrade, or kubectl apply -k YOUR-KUSTOMIZATION); the "
    "extender looks for the right every minute",
    page="queue.md#quota",
)
QUOTA_TOO_LARGE = warning(
    "QuotaTooLarge",
    "a quota that is larger than the cluster limits nothing; units are of memoryUnit, which may "
    "not be the one that was meant",
    f"lower it: {_WRITE}UNITS; `gpushare inspect` shows the cluster's units",
    page="queue.md#quota",
)
QUOTA_OF_NO_MODEL = warning(
    "QuotaOfNoModel",
    "the name must be exactly that of the model, else the GPUs that were meant are not limited",
    f"write the name that `gpushare inspect` shows: {_WRITE}'64,MODEL=16'",
    page="queue.md#quota",
)


def _limits(facts: Facts) -> bool:
    return isinstance(facts.limits, Unknown) or bool(facts.limits)


def _no_limits(facts: Facts) -> str:
    return "" if _limits(facts) else f"no namespace has the annotation {ANNOTATION_QUOTA}"


def _quotas_are_read(facts: Facts) -> Iterator[DoctorFinding]:
    if isinstance(facts.limits, Unknown):
        yield unchecked("quotas of namespaces", facts.limits)
        return
    for each in facts.limits:
        if each.problem:
            yield QUOTA_UNREADABLE.of(each.name, each.problem)


def _quotas_are_enforced(facts: Facts) -> Iterator[DoctorFinding]:
    limits = () if isinstance(facts.limits, Unknown) else facts.limits
    queues = () if isinstance(facts.queues, Unknown) else facts.queues
    for right in LISTS_NAMESPACES:
        is_given = facts.permissions.get(right)
        if isinstance(is_given, Unknown):
            yield unchecked(f"the right of {EXTENDER} to {right.verb} namespaces", is_given)
            return
        if is_given is False:
            names = sorted({*(each.name for each in limits), *queues})
            shown = ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")
            found = f"it may not {right.verb} namespaces; with a quota or a queue: {shown}"
            yield QUOTA_NOT_ENFORCED.of(EXTENDER, found)
            return


def _neither_limit_nor_queue(facts: Facts) -> str:
    if _limits(facts) or isinstance(facts.queues, Unknown) or facts.queues:
        return ""
    return "no namespace has a quota or a queue"


def _quotas_fit(facts: Facts) -> Iterator[DoctorFinding]:
    whole = sum(units_of(node.capacity) for node in facts.nodes)
    models: Counter[str] = Counter()
    for inventory in inventories(facts.nodes).values():
        for card in inventory.cards:
            models[card.model] += card.units
    for each in () if isinstance(facts.limits, Unknown) else facts.limits:
        quota = each.quota
        if quota is None:
            continue
        if quota.units is not None and quota.units > whole:
            found = f"a quota of {counted(quota.units, 'unit')}, and the cluster has {whole}"
            yield QUOTA_TOO_LARGE.of(each.name, found)
        for model, units in quota.models.items():
            if model not in models:
                there = ", ".join(sorted(filter(None, models))[:_LISTED])
                found = f"a quota for model {model!r}, which no node has"
                found += there and f"; the models here are {there}"
                yield QUOTA_OF_NO_MODEL.of(each.name, found)
            elif units > models[model]:
                most = f"{models[model]} of {model}"
                found = f"a quota of {units} units of {model}, and the cluster has {most}"
                yield QUOTA_TOO_LARGE.of(each.name, found)


def _no_nodes(facts: Facts) -> str:
    has_memory = any(units_of(node.capacity) for node in facts.nodes)
    return "" if has_memory else f"no node has {RESOURCE_MEMORY}"


_GROUP: Final = "Quotas"
CHECKS: Final = (
    Check(_GROUP, "quotas of namespaces can be read", _quotas_are_read, _no_limits),
    Check(
        _GROUP,
        "the extender knows quotas and queues",
        _quotas_are_enforced,
        subjects.first_of(subjects.extender, _neither_limit_nor_queue),
    ),
    Check(
        _GROUP,
        "quotas are of this cluster's size and models",
        _quotas_fit,
        subjects.first_of(_no_limits, _no_nodes),
    ),
)
