"""The annotation of a pod or gang for which pods are evicted: its victims.

A new leader goes on with them if one of them is ending or gone. Users can write the annotation, so
it is only a preference among equals.
"""

from collections.abc import Iterable
from typing import Final

from gpushare.contract import ANNOTATION_EVICTING
from gpushare.objects.model import Pod

PART: Final = 8  # characters of a uid: 512 victims are 4.6 KB
MOST: Final = 1500  # victims
_ALLOWED: Final = frozenset("0123456789abcdef")


def encode(victims: Iterable[Pod]) -> str:
    """Return the annotation's value: the beginnings of the victims' uids."""
    return ",".join(sorted(pod.uid[:PART] for pod in victims)[:MOST])


def hinted_victims(pod: Pod) -> frozenset[str]:
    """Return the beginnings of uids in a pod's annotation; parts that cannot be any are skipped."""
    text = pod.annotations.get(ANNOTATION_EVICTING, "")
    parts = text.split(",", MOST)[:MOST]
    return frozenset(part for part in parts if len(part) == PART and _ALLOWED.issuperset(part))
