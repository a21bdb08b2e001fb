"""Asks the driver every few seconds and tells ``NodeCards`` what it shows.

One thread of its own makes all calls, because they block and a sick machine can hold one for ever.
The thread is a daemon: a call that never returns must not keep the program from ending. No driver
at all is a state like any other: it may be installed later.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Sequence
from typing import Final

from deviceplugin.driver import Backend, Seen
from deviceplugin.errors import DriverError
from deviceplugin.node_cards import NodeCards
from gpushare.kube.backoff import Backoff

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 10.0
PATIENCE: Final = 3  # silent rounds after which no card counts as healthy any more

_Answer = asyncio.Future[Sequence[Seen]]


class DriverThread:
    """Calls of one backend, one after the other, off the event loop."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._asked: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, _Answer]]
        self._asked = queue.SimpleQueue()
        self._pending: _Answer | None = None
        threading.Thread(target=self._work, name="driver", daemon=True).start()

    async def cards(self) -> Sequence[Seen]:
        """What the driver shows; DriverError if it fails or takes longer than ANSWER_SECONDS.

        A call that is still out is waited for again, so a stuck driver has one call to answer.
        """
        if self._pending is None:
            loop = asyncio.get_running_loop()
            self._pending = loop.create_future()
            self._asked.put((loop, self._pending))
        done, _ = await asyncio.wait({self._pending}, timeout=ANSWER_SECONDS)
        if not done:
            raise DriverError(f"NVML has not answered within {ANSWER_SECONDS:g} s")
        answered, self._pending = self._pending, None
        return answered.result()

    def _work(self) -> None:
        while True:
            loop, answer = self._asked.get()
            try:
                seen: Sequence[Seen] | BaseException = self._backend.cards()
            except DriverError as err:
                seen = err
            except Exception as err:  # noqa: BLE001 - raised again where it was asked for
                seen = DriverError(f"NVML failed: {err!r}")
            try:
                loop.call_soon_threadsafe(_settle, answer, seen)
            except RuntimeError:
                return  # the loop has ended while the driver was thinking


class DriverWatch:
    """``interval_seconds`` between rounds; shorter ones, with jitter, until there is an answer."""

    def __init__(self, backend: Backend, cards: NodeCards, interval_seconds: float) -> None:
        self._thread = DriverThread(backend)
        self._cards = cards
        self._interval = interval_seconds
        self.why_silent = "the driver has not been asked yet"

    async def run(self) -> None:
        """Until cancelled."""
        backoff = Backoff(0.2, self._interval)
        silent_rounds = 0
        while True:
            try:
                seen = await self._thread.cards()
            except DriverError as err:
                silent_rounds += 1
                if self.why_silent != str(err):
                    log.warning("no answer from the driver", extra={"why": str(err)})
                self.why_silent = str(err)
                if silent_rounds >= PATIENCE:
                    self._cards.driver_is_silent(self.why_silent)
                known = self._cards.inventory is not None
                await asyncio.sleep(self._interval if known else backoff.next())
                continue
            if self.why_silent:
                log.info("the driver answers", extra={"cards": len(seen)})
            silent_rounds, self.why_silent = 0, ""
            backoff.reset()
            self._cards.seen(seen)
            await asyncio.sleep(self._interval)


def _settle(answer: _Answer, seen: Sequence[Seen] | BaseException) -> None:
    if answer.cancelled():
        return
    if isinstance(seen, BaseException):
        answer.set_exception(seen)
    else:
        answer.set_result(seen)
