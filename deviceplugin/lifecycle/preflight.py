"""What a plugin that stands by has tried before it says that it is ready.

An update that cannot work is to stop at its first node, where the plugin of before still serves.
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

AGAIN_SECONDS: Final = 2.0


class Preflight:
    """``why_not`` is empty once the driver has shown cards whose list the kubelet would take.

    ``has_answered``: the driver has. ``look`` may have calls out, so it is to be looked with later.
    """

    def __init__(self, backend: Backend, terms: Terms) -> None:
        self._backend = backend
        self._terms = terms
        self.look: CardCalls[Seen] = CardCalls(backend.count, backend.card, "driver")
        self.has_answered = False
        self.why_not = "standing by: the driver has not been asked yet"

    async def run(self) -> None:
        """Return once there is no reason left."""
        while True:
            why = await self._try()
            if why and why != self.why_not:
                log.warning("not fit to take over", extra={"why": why})
            self.why_not = why
            if not why:
                return
            await asyncio.sleep(AGAIN_SECONDS)

    async def _try(self) -> str:
        try:
            found = await self.look.results(ANSWER_SECONDS, lambda: self._backend.answered)
            self.has_answered = True
            shown = survey(None, [card for card in found if card is not None], self._terms)
            device_list.check_size(shown.inventory, shown.usable_mib)
        except (DriverError, ListTooLong) as err:
            return f"standing by, and not fit to take over: {err}"
        return ""
