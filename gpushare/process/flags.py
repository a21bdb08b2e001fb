"""Parse the flags that several programs have: ``--memory-unit`` and ports."""

import re
from typing import Final

from gpushare.errors import SettingsError

_UNIT: Final = re.compile(r"([1-9][0-9]{0,6})?(MiB|GiB)", re.ASCII)
_MIB: Final = {"MiB": 1, "GiB": 1024}
_PORT_MAX: Final = 2**16 - 1


def parse_unit(text: str) -> int:
    """Return the MiB of ``GiB``, ``MiB``, ``256MiB`` or the like; else raise SettingsError."""
    match = _UNIT.fullmatch(text)
    if match is None:
        raise SettingsError(
            f"--memory-unit={text[:63]}: write GiB, MiB or a number of them, as 256MiB"
        )
    return int(match[1] or 1) * _MIB[match[2]]


def parse_port(flag: str, text: str, *, least: int = 1) -> int:
    """Return a TCP port of at least ``least``; else raise SettingsError that names the flag."""
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(_PORT_MAX))
    if not (is_number and least <= int(text) <= _PORT_MAX):
        raise SettingsError(f"{flag}={text[:63]}: write a port from {least} to {_PORT_MAX}")
    return int(text)
