"""Say what would help a Pending pod: a smaller request, or the end of other pods (pure)."""

from typing import Final

from gpushare.answers.pending.ends import Ending
from gpushare.answers.pending.facts import Pending
from gpushare.answers.pending.phrases import compared, name_of
from gpushare.text.amounts import to_write
from gpushare.text.listed import all_of

_WORTH_SAYING: Final = 20  # an offer of less than this part of the request helps nobody


def what_helps(found: Pending) -> str:
    """Return the remedy as a sentence of its own; empty if nothing is known to help."""
    helps = []
    if found.fits_if is not None and found.fits_if.mib * _WORTH_SAYING >= found.needs_mib:
        _, most = compared(found.needs_mib, found.fits_if.mib)
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
    names = [name_of(each) for each in ends if each.name]
    if number == 1:
        only = ends[0]
        name = name_of(only) if only.name else "a pod in another namespace"
        return f"when {name} ends{_soon(only)}"
    if found.ends_together:
        listed = names[:2] if number == len(names[:2]) else names[:1]
        more = [f"{number - len(listed)} more"] if names and number > len(listed) else []
        named = f" ({all_of([*listed, *more])})" if names else ""
        return f"when {number} pods end{named}"
    least = "at least " if found.ends_more else ""
    text = f"when one of {least}{number} pods ends"
    for each in ends:
        if each.name:
            return f"{text}, for example {name_of(each)}{_soon(each)}"
    return text


def _soon(pod: Ending) -> str:
    if pod.terminating:
        return ", which is being deleted"
    return ", which kube-scheduler may evict for it" if pod.lower else ""
