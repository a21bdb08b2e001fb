"""What is said on a pod whose decision cannot be kept (pure).

The pod condition ``CardUsable`` is False while the kubelet tries the start of a container again and
again; the extender evicts by it. It is derived: what this program has said in its life counts, and
where it has said nothing, a container that runs proves that the cards could be used after all.
"""

from dataclasses import dataclass

from deviceplugin.errors import Reason
from gpushare.contract import CONDITION_CARD_USABLE
from gpushare.objects.model import Pod, PodCondition

MAX_MESSAGE = 1024


@dataclass(frozen=True, slots=True)
class Verdict:
    """The last word on starts of ``pod``'s containers: they may, if ``reason`` is None."""

    pod: Pod
    reason: Reason | None = None
    text: str = ""


def condition_due(
    present: PodCondition | None, last: Verdict | None, *, runs: bool
) -> PodCondition | None:
    """The condition that has to be written where ``present`` stands; None if that is right.

    ``runs``: a container of the pod runs now. A pod that never had any trouble gets no condition.
    """
    if last is not None and last.reason is not None:
        wanted = PodCondition(
            CONDITION_CARD_USABLE, "False", last.reason.value, last.text[:MAX_MESSAGE]
        )
        return None if present == wanted else wanted
    is_cured = last is not None or runs
    if present is None or present.status != "False" or not is_cured:
        return None
    return PodCondition(CONDITION_CARD_USABLE, "True", "Started", "a container could start")


def is_told(present: PodCondition | None, reason: Reason) -> bool:
    """Whether the pod says so already: a program that was restarted need not repeat its Event."""
    return present is not None and present.status == "False" and present.reason == reason.value
