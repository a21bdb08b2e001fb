"""Format quotas for a terminal (pure)."""

from collections.abc import Iterator
from typing import NamedTuple

from rich.text import Text

from gpushare.answers.queue.quotas import QuotaList, QuotaView
from gpushare.text.amounts import MIB_PER_GIB, Amounts
from gpusharectl.terminal.columns import columns

ALL = "(all)"
_NO_SUCH_MODEL = "no node has this model: nothing is limited"
_NUMBERS = frozenset({"USED", "LIMIT", "WAITING PODS", "REQUESTED"})


class Quotas(NamedTuple):
    """All that is shown. ``namespace`` is empty for all namespaces."""

    list: QuotaList
    namespace: str


def draw(found: Quotas) -> Iterator[Text]:
    """Yield a line for each namespace, and one for each model of GPUs that its quota limits."""
    rows: list[dict[str, str | int]] = []
    styles: list[dict[str, str]] = []
    for each in found.list.quotas:
        rows += _rows(each, found.list.unit_mib)
        is_full = each.limit is not None and each.used >= each.limit
        styles.append(
            {"STATUS": "red" if each.problem else "", "USED": "yellow" if is_full else ""}
        )
        for model in each.models.values():
            is_full = model.used >= model.limit and model.exists
            status = "" if model.exists else "red"
            styles.append({"USED": "yellow" if is_full else "", "STATUS": status})
    yield from columns(rows, styles, _NUMBERS)
    if not rows:
        yield Text("no namespace has a quota or uses GPU memory")
    if found.list.problem:
        why = f"namespaces cannot be read, so quotas are as last read: {found.list.problem}"
        yield Text(why, style="red")


def _rows(quota: QuotaView, unit_mib: int) -> Iterator[dict[str, str | int]]:
    amounts = Amounts(unit_mib)
    yield {
        "NAMESPACE": quota.namespace,
        "MODEL": ALL,
        "USED": amounts.needed(quota.used),
        "LIMIT": "-" if quota.limit is None else _limit(quota.limit, unit_mib),
        "WAITING PODS": quota.waiting_pods,
        "REQUESTED": amounts.needed(quota.waiting_units),
        "QUEUE": "yes" if quota.queued else "no",
        "STATUS": f"nothing is placed: {quota.problem}" if quota.problem else "",
    }
    for model, each in quota.models.items():
        yield {
            "NAMESPACE": "",
            "MODEL": model,
            "USED": amounts.needed(each.used),
            "LIMIT": _limit(each.limit, unit_mib),
            "WAITING PODS": "",
            "REQUESTED": "",
            "QUEUE": "",
            "STATUS": "" if each.exists else _NO_SUCH_MODEL,
        }


def _limit(units: int, unit_mib: int) -> str:
    """Return a limit, and the number in the annotation if that is another one."""
    text = Amounts(unit_mib).free(units)
    return text if unit_mib in {0, MIB_PER_GIB} else f"{text} ({units})"
