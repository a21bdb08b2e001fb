"""What each GPU keeps unshared beside what the driver reserves, such as 512Mi or 3% (pure)."""

import re
from dataclasses import dataclass
from typing import Final

from gpushare.errors import SettingsError

_AMOUNT: Final = re.compile(r"([0-9]{1,7})(Mi|Gi)")
_PERCENT: Final = re.compile(r"([0-9]{1,2}(?:\.[0-9]{1,2})?)%")
_MIB: Final = {"Mi": 1, "Gi": 1024}


@dataclass(frozen=True, slots=True)
class Reserve:
    """An amount in MiB, or a part of the GPU's memory in percent. ``text`` is as it was set."""

    text: str = ""
    mib: int = 0
    percent: float = 0.0

    def of(self, memory_mib: int) -> int:
        """Return the MiB, rounded up, of a GPU with so much memory."""
        return self.mib + -int(-memory_mib * self.percent // 100)


NO_RESERVE: Final = Reserve()


def parse_reserve(text: str) -> Reserve:
    """Return what ``--reserve`` says; raise SettingsError if it cannot be read."""
    if text == "0":
        return NO_RESERVE
    if found := _AMOUNT.fullmatch(text):
        return Reserve(text, mib=int(found[1]) * _MIB[found[2]])
    if found := _PERCENT.fullmatch(text):
        return Reserve(text, percent=float(found[1]))
    raise SettingsError(
        f"--reserve={text}: write an amount such as 512Mi or 1Gi, less than 100% such as 3%, or 0"
    )
