"""What one unit of ``aliyun.com/gpu-mem`` means, as ``--memory-unit`` says it in both programs."""

import re
from typing import Final

from gpushare.errors import SettingsError

_UNIT: Final = re.compile(r"([1-9][0-9]{0,6})?(MiB|GiB)", re.ASCII)
_MIB: Final = {"MiB": 1, "GiB": 1024}


def parse_unit(text: str) -> int:
    """MiB of a unit written as ``GiB``, ``MiB``, ``256MiB`` or ``2GiB``; else SettingsError."""
    match = _UNIT.fullmatch(text)
    if match is None:
        raise SettingsError(
            f"--memory-unit={text[:63]}: write GiB, MiB or a number of them, as 256MiB"
        )
    return int(match[1] or 1) * _MIB[match[2]]
