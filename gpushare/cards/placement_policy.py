"""Read a pod's placement policy from its user's annotations (pure)."""

from collections.abc import Hashable, Mapping
from enum import StrEnum
from typing import Final, TypeVar

import msgspec
from msgspec.structs import force_setattr

from gpushare.contract import (
    ANNOTATION_CARD_MODELS,
    ANNOTATION_CARD_POLICY,
    ANNOTATION_CARDS_NOT,
    ANNOTATION_CARDS_ONLY,
    ANNOTATION_ISOLATION,
    ANNOTATION_NODE_POLICY,
)
from gpushare.errors import RequestError

# All that a policy is read from.
ANNOTATIONS: Final = (
    ANNOTATION_NODE_POLICY,
    ANNOTATION_CARD_POLICY,
    ANNOTATION_CARD_MODELS,
    ANNOTATION_CARDS_ONLY,
    ANNOTATION_CARDS_NOT,
    ANNOTATION_ISOLATION,
)

_SHOWN: Final = 63
MOST_CHARACTERS: Final = 8 * 1024  # of one annotation: 190 UUIDs
MOST_NAMES: Final = 256


class NodePolicy(StrEnum):
    """``SHAPE`` is the function of utilization in the extender's configuration.

    ``PRICES`` is by what the pod wastes and costs others (``demand``).
    """

    BINPACK = "binpack"
    SPREAD = "spread"
    SHAPE = "shape"
    PRICES = "prices"


class CardPolicy(StrEnum):
    BINPACK = "binpack"
    SPREAD = "spread"


class Isolation(StrEnum):
    """Whether a pod goes only where the driver keeps containers to their share."""

    REQUIRED = "required"
    PREFERRED = "preferred"


class PlacementPolicy(msgspec.Struct, gc=False, frozen=True):
    """The nodes and cards that a pod prefers, and the cards that it allows.

    A policy of None means that of the configuration. Empty ``models`` and ``only`` allow all cards.
    A card in ``never`` is not allowed, even if it is in ``only``. ``needs_limit`` allows only cards
    whose driver limits memory. ``names_cards``: the policy may forbid cards regardless of their
    free units.
    """

    node_policy: NodePolicy | None = None
    card_policy: CardPolicy | None = None
    models: frozenset[str] = frozenset()
    only: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()
    needs_limit: bool = False
    names_cards: bool = False  # computed, read for every node

    def __post_init__(self) -> None:
        named = bool(self.models or self.only or self.never or self.needs_limit)
        force_setattr(self, "names_cards", named)

    @property
    def allowed(self) -> Hashable:
        """Return what decides which cards are allowed."""
        return self.models, self.only, self.never, self.needs_limit


DEFAULT_POLICY: Final = PlacementPolicy()


def read(annotations: Mapping[str, str]) -> PlacementPolicy:
    """Return the placement policy in a pod's annotations.

    Raises RequestError, with a text for the user, for an unknown policy or a list that is too long.
    """
    node = _policy(annotations, ANNOTATION_NODE_POLICY, NodePolicy)
    card = _policy(annotations, ANNOTATION_CARD_POLICY, CardPolicy)
    models = _list(annotations, ANNOTATION_CARD_MODELS)
    only = _list(annotations, ANNOTATION_CARDS_ONLY)
    never = _list(annotations, ANNOTATION_CARDS_NOT)
    needs_limit = _policy(annotations, ANNOTATION_ISOLATION, Isolation) is Isolation.REQUIRED
    if node is None and card is None and not (models or only or never or needs_limit):
        return DEFAULT_POLICY
    return PlacementPolicy(node, card, models, only, never, needs_limit)


def requires_limit(annotations: Mapping[str, str]) -> bool:
    """Return whether a pod, of which nothing else is read, requires a limit by the driver."""
    return annotations.get(ANNOTATION_ISOLATION) == Isolation.REQUIRED


def parse_names(text: str) -> frozenset[str]:
    """Return the exact names in a comma-separated list, without blank entries."""
    return frozenset(part for each in text.split(",") if (part := each.strip()))


def _list(annotations: Mapping[str, str], key: str) -> frozenset[str]:
    text = annotations.get(key, "")
    if len(text) > MOST_CHARACTERS:
        raise RequestError(
            f"annotation {key} has more than {MOST_CHARACTERS} characters: name fewer"
        )
    found = parse_names(text)
    if len(found) > MOST_NAMES:
        raise RequestError(f"annotation {key} has {len(found)} names: use at most {MOST_NAMES}")
    return found


_P = TypeVar("_P", bound=StrEnum)


def _policy(annotations: Mapping[str, str], key: str, policies: type[_P]) -> _P | None:
    text = annotations.get(key)
    if text is None:
        return None
    try:
        return policies(text)
    except ValueError:
        known = " or ".join(policies)
        shown = ascii(text[:_SHOWN])[:_SHOWN]  # kube-scheduler gets it for every node
        raise RequestError(f"annotation {key} is {shown}: write {known}") from None
