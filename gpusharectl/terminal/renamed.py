"""Names that were changed: the former ones still work, and neither help nor completion has them."""

from collections.abc import Sequence
from typing import Any

import click


class RenamedOption(click.Option):
    """An option that is read by its former name ``was`` too."""

    def __init__(self, declarations: Sequence[str], *, was: str, **more: Any) -> None:
        super().__init__(declarations, **more)
        self._was = was

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        shown = self.opts
        self.opts = [*shown, self._was]
        super().add_to_parser(parser, ctx)
        self.opts = shown


class RenamedChoice(click.Choice[str]):
    """A choice whose words are read by their former names too; ``was`` is by the former name."""

    def __init__(self, words: Sequence[str], was: dict[str, str]) -> None:
        super().__init__(words)
        self._was = was

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(self._was.get(value, value), param, ctx)
