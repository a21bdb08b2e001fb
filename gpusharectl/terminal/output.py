"""Write to stdout: colored and as wide as a terminal is, plain and whole in a pipe."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click
import msgspec
import yaml
from rich.console import COLOR_SYSTEMS, Console
from rich.text import Text

from gpushare.text.printable import printable
from gpushare.text.printable_json import printable_json

F = TypeVar("F", bound=Callable[..., Any])


def output(*more: str) -> Callable[[F], F]:
    """Add the option ``-o``/``--output``: text, json or yaml, and the formats in ``more``."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["text", *more, "json", "yaml"]),
        default="text",
        show_default=True,
        help="Output format.",
    )


def printable_line(line: Text) -> Text:
    """Make a line printable in place, and keep its colors."""
    line.plain = printable(line.plain)
    return line


def console() -> Console:
    """Return a console for stdout. rich checks for a terminal and NO_COLOR."""
    return Console(highlight=False, soft_wrap=True)


def show(lines: Iterable[Text | str], to: Console | None = None) -> None:
    """Write line by line, without wrapping or truncation.

    Not by ``Console.print``, which takes three times as long: a large cluster has 8,000 lines.
    """
    to = to or console()
    system = None if to.no_color else COLOR_SYSTEMS.get(to.color_system or "")
    for line in list(lines):
        if system is None or isinstance(line, str):
            to.file.write(f"{printable(str(line))}\n")
            continue
        for segment in printable_line(line).render(to, end="\n"):
            style = segment.style
            text = segment.text
            to.file.write(style.render(text, color_system=system) if style else text)
    to.file.flush()


def document(found: Any, form: str) -> bytes:
    """Encode the fields as JSON or YAML, in UTF-8 whatever the locale.

    Escapes stand for what a terminal would obey.
    """
    if form == "json":
        return msgspec.json.format(printable_json(found), indent=2) + b"\n"
    plain = msgspec.to_builtins(found)
    text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    if printable(text) != text:  # PyYAML keeps marks that change the reading order
        text = yaml.safe_dump(plain, sort_keys=False)
    return text.encode()


def show_document(found: Any, form: str) -> None:
    write(document(found, form))


def write(encoded: bytes) -> None:
    """Write what ``document`` or ``printable_json`` made."""
    click.echo(encoded, nl=False)  # noqa: TID251 - not text
