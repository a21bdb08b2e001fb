"""The CDI edits of simulated GPUs: nothing is opened to a container."""

from collections.abc import Sequence

from deviceplugin.cdi.spec_files import Edits
from gpushare.cards.model import Card


class NoEdits:
    """In the place of ``NvidiaSpecs``: a container gets only its variables."""

    def edits(self, _cards: Sequence[Card]) -> Edits:
        return Edits()

    def limit_hook(self, _cards: Sequence[Card]) -> Edits:
        return Edits()

    def why_no_limit_hook(self) -> str:
        return ""
