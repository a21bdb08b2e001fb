"""Samples the cluster once a minute for the live page's history, whether or not someone looks."""

import asyncio
from collections.abc import Generator
from typing import Final

from extender.decisions.cluster_state import ClusterState
from gpushare.ledger.accounts import used_by_pods
from gpushare.live_page.history import History, Sample
from gpushare.process.time_slices import Turns

INTERVAL_SECONDS: Final = 60.0
_NS: Final = 1_000_000_000


async def sample_cluster(state: ClusterState, history: History) -> None:
    """Add a sample at once and then every INTERVAL_SECONDS, until cancelled."""
    turns = Turns()
    while True:
        history.add(await turns.run(take(state)))
        await asyncio.sleep(INTERVAL_SECONDS)


def take(state: ClusterState) -> Generator[None, None, Sample]:
    """Return a sample of the cluster as it is now, in short steps."""
    used = total = 0
    for name in list(state.ledger.nodes()):
        yield
        account = state.ledger.account(name)
        if account is None:
            continue
        unit = account.inventory.unit_mib
        units = sum(entry.card.units for entry in account.cards)
        held = used_by_pods(account, state.ledger.shares(name))
        total += units * unit
        used += min(held, units) * unit
    pending = 0
    for uid in state.pods.uids():
        yield
        pod = state.pod(uid)
        pending += pod is not None and not pod.node
    return Sample(state.clock.wall_ns() // _NS, used, total, pending)
