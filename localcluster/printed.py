"""Reads what a container of the sample workload prints: its environment and device nodes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_CARD: Final = re.compile(r"/dev/nvidia(\d+) \d+:\d+ \S+")


@dataclass(frozen=True)
class Printed:
    """A container's variables, and its lines about the driver's device nodes.

    A line is like `/dev/nvidia0 195:0 allowed`, or ends in `denied` if the container cannot open
    it.
    """

    environment: Mapping[str, str]
    devices: tuple[str, ...]

    @property
    def minors(self) -> frozenset[int]:
        """Return the numbers of the cards whose device nodes the container has."""
        return frozenset(int(found[1]) for each in self.devices if (found := _CARD.match(each)))


def read_log(text: str) -> Printed | None:
    """Return what a container printed, from its log file; None until it has printed everything.

    In a log file, each line begins with a time, the stream, and `F` for a whole line.
    """
    lines = [line.split(" ", 3)[-1] for line in text.splitlines()]
    if "ready" not in lines:
        return None
    pairs = (line.partition("=") for line in lines if "=" in line)
    devices = tuple(line for line in lines if line.startswith("/dev/nvidia"))
    return Printed({key: value for key, _, value in pairs}, devices)
