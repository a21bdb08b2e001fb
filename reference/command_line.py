"""What ``gpushare`` and its commands say with ``--help``."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

import click

from gpusharectl.app import COMMANDS, TABLE, imported
from reference.markdown import paragraph, table

COMMON: Final = 2  # commands; an option of so many is described once


def commands() -> str:
    """Return a section for each command, by group."""
    shared = _common()
    parts: list[str] = []
    for group, names in TABLE.items():
        parts.append(f"## {group}")
        for name in names:
            parts.extend(_command(name, shared))
    return "\n\n".join(parts)


def common_options() -> str:
    """Return the options that several commands have."""
    return table(("option", "meaning"), *((f"`{left}`", right) for left, right in _common()))


def _common() -> list[tuple[str, str]]:
    counts = Counter(each for name in COMMANDS for each in _options(name))
    return [each for each, count in counts.items() if count >= COMMON]


def _command(name: str, shared: list[tuple[str, str]]) -> Iterator[str]:
    command = imported(name)
    context = click.Context(command, info_name=f"gpushare {name}")
    arguments = [
        each.make_metavar(context) for each in command.params if isinstance(each, click.Argument)
    ]
    yield f"### {name}"
    first, *more = (command.help or "").split("\n\n")
    usage = f"`{' '.join(['gpushare', name, *arguments])}`: " if arguments else ""
    yield paragraph(" ".join([usage + first, *more]))
    own = [each for each in _options(name) if each not in shared]
    if own:
        yield table(("option", "meaning"), *((f"`{left}`", right) for left, right in own))


def _options(name: str) -> Iterator[tuple[str, str]]:
    return options_of(imported(name), name)


def options_of(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
    """Yield names and help of a command's options, as ``--help`` shows them."""
    context = click.Context(command, info_name=name)
    for each in command.params:
        record = each.get_help_record(context)
        if isinstance(each, click.Option) and record is not None:
            left, right = record
            yield left.replace(" INTEGER RANGE", " N"), right
