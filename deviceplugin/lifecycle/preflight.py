"""Checks that a plugin standing by could serve, before it reports that it is ready.

An update that cannot work must stop at its first node, where the previous plugin still serves.
"""

import asyncio
import logging
from typing import Final

from deviceplugin.cards import device_list
from deviceplugin.cards.driver_watch import ANSWER_SECONDS
from deviceplugin.cards.survey import Terms, survey
from deviceplugin.driver.calls import CardCalls
from deviceplugin.driver.interface import Backend, Seen
from deviceplugin.errors import DriverError, ListTooLong

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 2.0


class Preflight:
    """``why_not`` is empty once the driver has shown GPUs whose list the kubelet would accept.

    ``has_answered``: the driver has. ``calls`` may have pending calls, so the driver watch goes on
    with it.
    """

    def __init__(self, backend: Backend, terms: Terms) -> None:
        self._backend = backend
        self._terms = terms
        self.calls: CardCalls[Seen] = CardCalls(backend.count, backend.card, "driver")
        self.has_answered = False
        self.why_not = "standing by: the driver has not been asked yet"

    async def run(self) -> None:
        """Return once the plugin could serve."""
        while True:
            why = await self._try()
            if why and why != self.why_not:
                log.warning("not ready to take over", extra={"why": why})
            self.why_not = why
            if not why:
                return
            await asyncio.sleep(RETRY_SECONDS)

    async def _try(self) -> str:
        try:
            found = await self.calls.results(ANSWER_SECONDS, lambda: self._backend.answered)
            self.has_answered = True
            shown = survey(None, [card for card in found if card is not None], self._terms)
            device_list.check_size(shown.inventory, shown.usable_mib)
        except (DriverError, ListTooLong) as err:
            return f"standing by, and not ready to take over: {err}"
        return ""
