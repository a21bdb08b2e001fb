"""What goes to the terminal: coloured and as wide as it is there, plain and whole in a pipe."""

from collections.abc import Iterable
from typing import Any, Final

import click
import msgspec
import yaml
from rich.color import ColorSystem
from rich.console import Console
from rich.text import Text

from gpusharectl.terminal.printable import printable

FORMATS: Final = ("json", "yaml")
_SYSTEMS: Final = {
    "standard": ColorSystem.STANDARD,
    "256": ColorSystem.EIGHT_BIT,
    "truecolor": ColorSystem.TRUECOLOR,
    "windows": ColorSystem.WINDOWS,
}

output = click.option(
    "-o", "--output", type=click.Choice(FORMATS), help="For programs: docs/command-line.md."
)


def printable_line(line: Text) -> Text:
    """Make a line so, in place: its colours stay where they are."""
    line.plain = printable(line.plain)
    return line


def console() -> Console:
    """Of stdout. rich itself looks whether that is a terminal, and at NO_COLOR."""
    return Console(highlight=False, soft_wrap=True)


def show(lines: Iterable[Text | str], to: Console | None = None) -> None:
    """Write line by line; nothing is cut off or broken in two.

    Not by ``Console.print``, which takes three times as long: a large cluster has 8,000 lines.
    """
    to = to or console()
    system = None if to.no_color else _SYSTEMS.get(to.color_system or "")
    for line in lines:
        if system is None or isinstance(line, str):
            to.file.write(f"{printable(str(line))}\n")
            continue
        for segment in printable_line(line).render(to, end="\n"):
            style = segment.style
            text = segment.text
            to.file.write(style.render(text, color_system=system) if style else text)
    to.file.flush()


def document(found: Any, form: str) -> bytes:
    """What a program reads: JSON or YAML of the same fields, in UTF-8 whatever people read."""
    if form == "json":
        return msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"
    plain = msgspec.to_builtins(found)
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, encoding="utf-8")


def unit_name(unit_mib: int) -> str:
    """What an amount of units is called, after a number."""
    known = {1: "MiB", 1024: "GiB"}
    return known.get(unit_mib, f"x {unit_mib} MiB")
