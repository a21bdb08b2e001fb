"""Checks the GPUs every few seconds, and at once when the driver reports an event.

All calls are made in threads of their own, because they block and a broken machine can block one
forever: each GPU has one in a check, and waiting for events has another. They are daemon threads: a
call that never returns must not keep the program from ending. A GPU that hangs in the driver is
unhealthy by itself, and the others go on. A missing driver is a normal state: it may be installed
later.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

from deviceplugin import metrics
from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.driver.calls import CardCalls
from deviceplugin.driver.interface import Backend, CardEvent, Seen, UnreadableCard
from deviceplugin.errors import DriverError, DriverReplaced
from gpushare.errors import RestartNeeded
from gpushare.kube.backoff import Backoff

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 10.0
PATIENCE: Final = 3  # rounds without an answer after which no GPU counts as healthy
QUICK_SECONDS: Final = 1.0  # between checks while a GPU is suspect
LAST_WORDS_SECONDS: Final = 3.0  # for the kubelet to get the list, before the program ends
_CALM_SECONDS: Final = 0.1  # between two checks, however many events there are
_EVENT_SECONDS: Final = 0.5  # until events of a new GPU are received
_HANGS: Final = (
    "the driver does not answer for this GPU, and does for others: drain and reset the GPU, or "
    "reboot the node; the kernel log may name an XID"
)


class EventThread:
    """Waits for events and passes each to ``received`` on the loop; None where waiting failed."""

    def __init__(self, backend: Backend, received: Callable[[CardEvent | None], None]) -> None:
        self._backend = backend
        self._received = received
        self._stopped = threading.Event()
        self._logged = ""

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        metrics.EVENT_CARDS.set_function(lambda: len(self._backend.heard))
        threading.Thread(target=self._work, args=(loop,), name="events", daemon=True).start()

    def stop(self) -> None:
        """Stop after the wait that is in progress."""
        self._stopped.set()

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        backoff = Backoff(0.2, 30.0)
        while not self._stopped.is_set():
            event: CardEvent | None = None
            pause = 0.0
            try:
                event = self._backend.next_event(_EVENT_SECONDS)
            except Exception as err:  # noqa: BLE001 - GPUs are polled meanwhile; waiting starts again
                self._log(str(err) or repr(err))
                pause = backoff.next()
            else:
                self._log("")
                backoff.reset()
            try:
                if event is not None or pause:
                    loop.call_soon_threadsafe(self._received, event)
            except RuntimeError:
                return  # the loop has ended
            self._stopped.wait(pause)

    def _log(self, why: str) -> None:
        if why and why != self._logged:
            log.warning("no events from the driver, GPUs are polled", extra={"why": why})
        elif self._logged and not why:
            log.info("events from the driver are received again")
        self._logged = why


class DriverWatch:
    """Checks every ``interval_seconds``; more often, with jitter, until there is an answer.

    ``has_shown`` is set when the driver has shown the GPUs for the first time. ``calls`` was used
    by this process before, and ``has_answered`` is whether the driver answered then.
    """

    def __init__(
        self,
        backend: Backend,
        cards: NodeCards,
        interval_seconds: float,
        *,
        calls: CardCalls[Seen] | None = None,
        has_answered: bool = False,
    ) -> None:
        self._backend = backend
        self._calls = calls or CardCalls(backend.count, backend.card, "driver")
        self._uuids: dict[int, str] = {}  # by position: a GPU that hangs reports none
        self._events = EventThread(backend, self._receive)
        self._cards = cards
        self._interval = interval_seconds
        self._recent: list[CardEvent] = []
        self._wake = asyncio.Event()
        self._has_answered = has_answered
        self.has_shown = asyncio.Event()
        self._silent_rounds = 0
        self._silent_since = 0.0
        self.why_silent = "the driver has not been asked yet"

    async def run(self) -> None:
        """Watch until cancelled. RestartNeeded if the driver was replaced meanwhile."""
        backoff = Backoff(0.2, self._interval)
        self._events.start()
        try:
            while True:
                if await self._check():
                    backoff.reset()
                await self._pause(self._seconds(backoff))
        finally:
            self._events.stop()

    async def _check(self) -> bool:
        # Only a check that starts after an event shows its effect.
        events, self._recent = self._recent, []
        try:
            found = await self._calls.results(ANSWER_SECONDS, lambda: self._backend.answered)
        except DriverError as err:
            # The driver gives no advice: its events must do.
            self._recent = [
                event for event in events if not self._cards.take(event, alone=True)
            ] + self._recent
            await self._failed(err)
            return False
        if self.why_silent:
            log.info("the driver answers", extra={"cards": len(found)})
        self._silent_rounds, self.why_silent, self._has_answered = 0, "", True
        self._cards.seen(self._seen(found), events)
        self.has_shown.set()
        return True

    def _seen(self, found: Sequence[Seen | None]) -> tuple[Seen, ...]:
        shown = {
            position: card.uuid
            for position, card in enumerate(found)
            if card is not None and card.uuid
        }
        # After a driver was reloaded its positions may differ.
        self._uuids = {
            position: uuid
            for position, uuid in self._uuids.items()
            if position < len(found) and uuid not in shown.values()
        } | shown
        return tuple(
            card
            if card is not None
            else UnreadableCard(position, self._uuids.get(position, ""), _HANGS, is_silent=True)
            for position, card in enumerate(found)
        )

    async def _failed(self, err: DriverError) -> None:
        now = asyncio.get_running_loop().time()
        self._silent_rounds += 1
        if self._silent_rounds == 1:
            self._silent_since = now
        if self.why_silent != str(err):
            log.warning("no answer from the driver", extra={"why": str(err)})
        self.why_silent = str(err)
        is_replaced = isinstance(err, DriverReplaced)
        # Failing events cause earlier checks: that is no reason for less patience.
        is_long = now - self._silent_since >= (PATIENCE - 1) * self._interval
        if is_replaced or (is_long and self._silent_rounds >= PATIENCE):
            self._cards.driver_is_silent(self.why_silent)
        if is_replaced and self._has_answered:
            # A loaded library stays loaded: only a new process can load the new one.
            await asyncio.sleep(LAST_WORDS_SECONDS)
            raise RestartNeeded(f"the driver was replaced while this program ran: {err}")

    def _seconds(self, backoff: Backoff) -> float:
        if self.why_silent and self._cards.inventory is None:
            return backoff.next()
        return min(QUICK_SECONDS, self._interval) if self._cards.is_suspicious else self._interval

    async def _pause(self, seconds: float) -> None:
        """Wait, but no longer than until there is an event."""
        await asyncio.sleep(min(_CALM_SECONDS, seconds))
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    def _receive(self, event: CardEvent | None) -> None:
        if event is not None:
            if event.xid:
                metrics.XIDS.labels(event.uuid, str(event.xid)).inc()
            if event not in self._recent and not self._cards.take(event):
                # Once until the next check: a program's own fault can cause thousands of events.
                self._recent.append(event)
                log.warning("event", extra={"card": event.uuid, "xid": event.xid})
        self._wake.set()
