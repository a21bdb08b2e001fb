"""Looks at the cards every few seconds, and at once when the driver tells that something happened.

Threads of their own make all calls, because they block and a sick machine can hold one for ever:
each card has one in a look, and waiting for events another. They are daemons: a call that never
returns must not keep the program from ending. A card that hangs in the driver is ill by itself, and
the others go on. No driver at all is a state like any other: it may be installed later.
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
PATIENCE: Final = 3  # silent rounds after which no card counts as healthy any more
QUICK_SECONDS: Final = 1.0  # between the looks at a card under suspicion
LAST_WORDS_SECONDS: Final = 3.0  # in which the kubelet learns why, before the program ends
_CALM_SECONDS: Final = 0.1  # between two looks, however many events there are
_EVENT_SECONDS: Final = 0.5  # after which a card that has appeared is listened to
_HANGS: Final = (
    "the driver does not answer when it is asked for this card, and does for others: empty it and "
    "reset the GPU, or reboot the node; the kernel's log may name an XID"
)


class EventThread:
    """Waits for events and hands each to ``heard`` on the loop; None where waiting has failed."""

    def __init__(self, backend: Backend, heard: Callable[[CardEvent | None], None]) -> None:
        self._backend = backend
        self._heard = heard
        self._stopped = threading.Event()
        self._logged = ""

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        metrics.EVENT_CARDS.set_function(lambda: len(self._backend.heard))
        threading.Thread(target=self._work, args=(loop,), name="events", daemon=True).start()

    def stop(self) -> None:
        """Wait for no more than the event that is being waited for."""
        self._stopped.set()

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        backoff = Backoff(0.2, 30.0)
        while not self._stopped.is_set():
            event: CardEvent | None = None
            pause = 0.0
            try:
                event = self._backend.next_event(_EVENT_SECONDS)
            except Exception as err:  # noqa: BLE001 - cards are polled meanwhile; it begins anew
                self._log(str(err) or repr(err))
                pause = backoff.next()
            else:
                self._log("")
                backoff.reset()
            try:
                if event is not None or pause:
                    loop.call_soon_threadsafe(self._heard, event)
            except RuntimeError:
                return  # the loop has ended
            self._stopped.wait(pause)

    def _log(self, why: str) -> None:
        if why and why != self._logged:
            log.warning("no events of the driver, cards are polled", extra={"why": why})
        elif self._logged and not why:
            log.info("the driver's events are heard again")
        self._logged = why


class DriverWatch:
    """``interval_seconds`` between looks; shorter, with jitter, until there is an answer.

    ``has_looked`` is set when the driver has shown the cards for the first time. ``look`` is what
    this process has looked with before, and ``has_answered`` whether the driver answered then.
    """

    def __init__(
        self,
        backend: Backend,
        cards: NodeCards,
        interval_seconds: float,
        *,
        look: CardCalls[Seen] | None = None,
        has_answered: bool = False,
    ) -> None:
        self._backend = backend
        self._look_once = look or CardCalls(backend.count, backend.card, "driver")
        self._uuids: dict[int, str] = {}  # by position, as last shown: a card that hangs tells none
        self._events = EventThread(backend, self._heard)
        self._cards = cards
        self._interval = interval_seconds
        self._news: list[CardEvent] = []
        self._stirred = asyncio.Event()
        self._has_answered = has_answered
        self.has_looked = asyncio.Event()
        self._silent_rounds = 0
        self._silent_since = 0.0
        self.why_silent = "the driver has not been asked yet"

    async def run(self) -> None:
        """Until cancelled. RestartNeeded once the driver was replaced under this program."""
        backoff = Backoff(0.2, self._interval)
        self._events.start()
        try:
            while True:
                if await self._look():
                    backoff.reset()
                await self._pause(self._seconds(backoff))
        finally:
            self._events.stop()

    async def _look(self) -> bool:
        # Only a look that has begun after an event says what came of it.
        news, self._news = self._news, []
        try:
            found = await self._look_once.results(ANSWER_SECONDS, lambda: self._backend.answered)
        except DriverError as err:
            # The driver's advice cannot be had, and nobody knows when: its events must do.
            self._news = [
                event for event in news if not self._cards.take(event, alone=True)
            ] + self._news
            await self._failed(err)
            return False
        if self.why_silent:
            log.info("the driver answers", extra={"cards": len(found)})
        self._silent_rounds, self.why_silent, self._has_answered = 0, "", True
        self._cards.seen(self._seen(found), news)
        self.has_looked.set()
        return True

    def _seen(self, found: Sequence[Seen | None]) -> tuple[Seen, ...]:
        shown = {
            position: card.uuid
            for position, card in enumerate(found)
            if card is not None and card.uuid
        }
        # After a driver was loaded anew its positions may be others.
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
        # Events that fail as well make looks come sooner: that is no reason for less patience.
        is_long = now - self._silent_since >= (PATIENCE - 1) * self._interval
        if is_replaced or (is_long and self._silent_rounds >= PATIENCE):
            self._cards.driver_is_silent(self.why_silent)
        if is_replaced and self._has_answered:
            # A library that was loaded stays loaded: only a new process can have the new one.
            await asyncio.sleep(LAST_WORDS_SECONDS)
            raise RestartNeeded(f"the driver was replaced while this program ran: {err}")

    def _seconds(self, backoff: Backoff) -> float:
        if self.why_silent and self._cards.inventory is None:
            return backoff.next()
        return min(QUICK_SECONDS, self._interval) if self._cards.is_suspicious else self._interval

    async def _pause(self, seconds: float) -> None:
        """Wait, but no longer than until there is news."""
        await asyncio.sleep(min(_CALM_SECONDS, seconds))
        try:
            async with asyncio.timeout(seconds):
                await self._stirred.wait()
        except TimeoutError:
            return
        self._stirred.clear()

    def _heard(self, event: CardEvent | None) -> None:
        if event is not None:
            if event.xid:
                metrics.XIDS.labels(event.uuid, str(event.xid)).inc()
            if event not in self._news and not self._cards.take(event):
                # Once until the next look: a program's own fault can come by the thousand.
                self._news.append(event)
                log.warning("event", extra={"card": event.uuid, "xid": event.xid})
        self._stirred.set()
