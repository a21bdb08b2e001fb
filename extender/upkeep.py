"""What time alone brings about, looked at every second."""

import asyncio
from typing import Final

from extender.watch.cluster import Cluster

EVERY_SECONDS: Final = 1.0


class Upkeep:
    """Lets go of plans that have expired, and tells pods why they wait."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            self._cluster.expire_plans()
            self._cluster.tell_waiting()
