"""Decides the condition of a pod whose chosen GPU cannot be used (pure).

The pod condition ``CardUsable`` is False while the kubelet retries the start of a container; the
extender evicts by it. It is derived from this program's last answer or, without one, from a
running container, which proves that the GPUs could be used after all.
"""

from dataclasses import dataclass

from deviceplugin.errors import Reason
from gpushare.contract import CONDITION_CARD_USABLE
from gpushare.objects.model import Pod, PodCondition

MAX_MESSAGE = 1024


@dataclass(frozen=True, slots=True)
class Verdict:
    """The last answer to starts of ``pod``'s containers: they may start if ``reason`` is None."""

    pod: Pod
    reason: Reason | None = None
    text: str = ""


def condition_due(
    present: PodCondition | None, last: Verdict | None, *, runs: bool
) -> PodCondition | None:
    """Return the condition to write instead of ``present``; None if that is correct.

    ``runs``: a container of the pod runs now. A pod that was never refused gets no condition.
    """
    if last is not None and last.reason is not None:
        wanted = PodCondition(
            CONDITION_CARD_USABLE, "False", last.reason.value, last.text[:MAX_MESSAGE]
        )
        return None if present == wanted else wanted
    is_resolved = last is not None or runs
    if present is None or present.status != "False" or not is_resolved:
        return None
    return PodCondition(CONDITION_CARD_USABLE, "True", "Started", "a container could start")


def is_reported(present: PodCondition | None, reason: Reason) -> bool:
    """Whether the pod shows this reason: a restarted program need not repeat its Event."""
    return present is not None and present.status == "False" and present.reason == reason.value
