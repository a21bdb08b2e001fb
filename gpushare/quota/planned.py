"""Plan within the quota of a namespace (pure)."""

from collections.abc import Generator
from typing import Final

from gpushare.placement.reasons import Reason
from gpushare.placement.trial import World
from gpushare.planning.ask import Ask, NoPlan, Plan
from gpushare.planning.eligibility import nodes_for
from gpushare.planning.planner import Planner
from gpushare.quota.quotas import Quotas
from gpushare.quota.reasons import OVER_MODEL_QUOTA

MODELS_TRIED: Final = 4  # of GPUs, until a plan exceeds the quota of none


def planned(
    planner: Planner, quotas: Quotas, world: World, asked: Ask
) -> Generator[None, None, Plan | NoPlan]:
    """Return a plan that the quota permits when it is returned, in short steps."""
    ask = asked
    for _ in range(MODELS_TRIED):
        limited = quotas.limited(ask)
        if isinstance(limited, Reason):
            return NoPlan(limited)
        found = yield from planner.plan(limited)
        if isinstance(found, NoPlan):
            if limited.cooling != asked.cooling:  # is it the quota, or room, that it lacks?
                nodes = yield from nodes_for(world, asked.members)
                if nodes <= limited.cooling:
                    return NoPlan(OVER_MODEL_QUOTA)
                anywhere = yield from planner.plan(asked)
                return NoPlan(OVER_MODEL_QUOTA) if isinstance(anywhere, Plan) else found
            return found
        over = quotas.exceeding(ask, found.slots)
        if isinstance(over, Reason):
            return NoPlan(over)
        if not over:
            return found
        ask = quotas.without(ask, over)
    return NoPlan(OVER_MODEL_QUOTA)
