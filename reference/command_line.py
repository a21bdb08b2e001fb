"""What ``gpushare`` and its commands say with ``--help``."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

import click

from gpusharectl.app import COMMANDS, TABLE, imported
from reference.markdown import paragraph, table

COMMON: Final = 2  # commands; an option of so many is described once
_RANGE: Final = re.compile(r" \[(default: [^;\]]+)?;? ?[\d.<=]*x[\d.<>=]*\]")  # errors state it


def commands() -> str:
    """Return a section for each command, by group; ``--help`` says more about it."""
    shared = _common()
    parts: list[str] = []
    for group, names in TABLE.items():
        parts.append(f"## {group}")
        for name in names:
            parts.extend(_command(name, shared))
    return "\n\n".join(parts)


def common_options() -> str:
    """Return the options that several commands have, one row for those with the same meaning."""
    names: dict[str, list[str]] = {}
    for left, right in _common():
        names.setdefault(right, []).append(f"`{left}`")
    return table(
        ("option", "meaning"), *((", ".join(each), right) for right, each in names.items())
    )


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
    usage = f"`{' '.join(['gpushare', name, *arguments])}`: " if arguments else ""
    yield paragraph(usage + (command.help or "").partition("\n\n")[0])
    own = [each for each in _options(name) if each not in shared]
    if own:
        yield table(("option", "meaning"), *((f"`{left}`", right) for left, right in own))


def _options(name: str) -> Iterator[tuple[str, str]]:
    return options_of(imported(name), name)


def _without_range(found: re.Match[str]) -> str:
    return f" [{found[1]}]" if found[1] else ""


def options_of(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
    """Yield names and help of a command's options, as ``--help`` shows them."""
    context = click.Context(command, info_name=name)
    for each in command.params:
        record = each.get_help_record(context)
        if isinstance(each, click.Option) and record is not None:
            left, right = record
            yield left.replace(" INTEGER", " N"), _RANGE.sub(_without_range, right)
