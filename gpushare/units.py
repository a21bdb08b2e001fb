"""What one unit of ``aliyun.com/gpu-mem`` means: ``GiB``, ``MiB`` or ``<n>MiB``."""

import re
from typing import Final

from gpushare.errors import SettingsError

_UNIT: Final = re.compile(r"([1-9][0-9]{0,6})?(MiB|GiB)", re.ASCII)
_MIB: Final = {"MiB": 1, "GiB": 1024}


def parse_unit(text: str) -> int:
    """MiB in one unit; SettingsError if ``text`` says none."""
    match = _UNIT.fullmatch(text)
    if match is None:
        raise SettingsError(f"memory unit {text!r} is unknown: write GiB, MiB or <n>MiB")
    return int(match[1] or 1) * _MIB[match[2]]
