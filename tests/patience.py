"""How long tests wait: for a machine that is several times slower than usual.

A limit matters only when something fails, so it can be generous. What a test promises about time
it counts on the clock of a program, never by such a limit.
"""

import os
from typing import Final

from localcluster.wait import PATIENCE

FACTOR: Final = 10


def set_default() -> None:
    """Let this process and those that it starts wait longer; who has chosen a factor keeps it."""
    os.environ.setdefault(PATIENCE, str(FACTOR))
