"""Format quotas for a terminal (pure)."""

from collections.abc import Iterator
from typing import NamedTuple

from rich.text import Text

from gpushare.answers.queue.quotas import QuotaList, QuotaView
from gpusharectl.terminal.columns import columns

ALL = "(all)"
_NO_SUCH_MODEL = "no node has this model: nothing is limited"
_NUMBERS = frozenset({"USED", "LIMIT", "WAITING PODS", "WAITING UNITS"})


class Quotas(NamedTuple):
    """All that is shown. ``namespace`` is empty for all namespaces."""

    list: QuotaList
    namespace: str


def draw(found: Quotas) -> Iterator[Text]:
    """Yield a line for each namespace, and one for each model of GPUs that its quota limits."""
    rows: list[dict[str, str | int]] = []
    styles: list[dict[str, str]] = []
    for each in found.list.quotas:
        rows += _rows(each)
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


def _rows(quota: QuotaView) -> Iterator[dict[str, str | int]]:
    yield {
        "NAMESPACE": quota.namespace,
        "MODEL": ALL,
        "USED": quota.used,
        "LIMIT": "-" if quota.limit is None else quota.limit,
        "WAITING PODS": quota.waiting_pods,
        "WAITING UNITS": quota.waiting_units,
        "STATUS": _status(quota),
    }
    for model, each in quota.models.items():
        yield {
            "NAMESPACE": "",
            "MODEL": model,
            "USED": each.used,
            "LIMIT": each.limit,
            "WAITING PODS": "",
            "WAITING UNITS": "",
            "STATUS": "" if each.exists else _NO_SUCH_MODEL,
        }


def _status(quota: QuotaView) -> str:
    if quota.problem:
        return f"nothing is placed: {quota.problem}"
    return "queued" if quota.queued else "not queued"
