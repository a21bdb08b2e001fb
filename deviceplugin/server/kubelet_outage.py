"""Blocks the node while no pod could be assigned a GPU because the kubelet does not answer.

Early binding needs the kubelet's ``/pods``. Without it each pod that arrives fails for good and its
owner creates another at once, while the node offers anything. So after FAILURES of them the node is
blocked until the kubelet lists its pods again. Late binding never fails an Allocate for this, and
so never blocks.
"""

import asyncio
import logging
from collections import deque
from typing import Final

from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.cdi.binding import Binding
from deviceplugin.errors import KubeletError
from deviceplugin.kubelet.pods_endpoint import PodSource
from gpushare.clock import Clock

log = logging.getLogger(__name__)

BLOCK: Final = "kubelet-pods"
FAILURES: Final = 3
WITHIN_SECONDS: Final = 60.0
PROBE_SECONDS: Final = 2.0


class KubeletOutage:
    """``binding`` is read at each probe: it may have become late since."""

    def __init__(
        self, cards: NodeCards, kubelet: PodSource, binding: Binding, clock: Clock
    ) -> None:
        self._cards = cards
        self._kubelet = kubelet
        self._binding = binding
        self._clock = clock
        self._failed_at: deque[float] = deque(maxlen=FAILURES)
        self._why = ""
        self._wake = asyncio.Event()

    def allocate_failed(self, err: BaseException) -> None:
        """Count a failed Allocate if the kubelet's ``/pods`` was the cause."""
        cause = _kubelet_error(err)
        if cause is None:
            return
        now = self._clock.monotonic()
        self._failed_at.append(now)
        self._why = str(cause)
        if len(self._failed_at) == FAILURES and now - self._failed_at[0] <= WITHIN_SECONDS:
            self._wake.set()

    async def run(self) -> None:
        """Block and unblock the node until cancelled."""
        while True:
            await self._wake.wait()
            while self._why:
                await self._probe()
                if self._why:
                    await asyncio.sleep(PROBE_SECONDS)
            self._failed_at.clear()
            self._wake.clear()
            self._cards.set_block(BLOCK, "")

    async def _probe(self) -> None:
        if self._binding.now.binding == "late":
            self._why = ""
            return
        try:
            await self._kubelet.fetch()
        except KubeletError as err:
            # The first text stays: a changed text would be an Event at each probe.
            log.info("the kubelet's pods cannot be read yet", extra={"why": str(err)})
            text = f"{FAILURES} pods were refused because the kubelet did not list its pods"
            self._cards.set_block(BLOCK, f"{text}: {self._why}")
        else:
            self._why = ""


def _kubelet_error(err: BaseException | None) -> KubeletError | None:
    while err is not None and not isinstance(err, KubeletError):
        err = err.__cause__ or err.__context__
    return err
