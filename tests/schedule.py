"""Assign tests to the processes of pytest (``pytest -n 3``)."""

import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

_OWN: Final = re.compile(
    r"\bCluster\.up\(|\btests\.cluster\.bringup\b|\bmatrix_cluster\(|\bkueue_in_front\("
)
_SECOND_HALF: Final = "test_p"  # modules before it take half the time: `pytest --durations=0`


class ByCluster(LoadScopeScheduling):
    """Give two processes the tests of shared clusters, and one those that bring up their own.

    xdist starts with the largest groups, so these come first. All other tests go to any free
    process. xdist's own groups use a mark, which pytest 9.2 loses.
    """

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        self._root = config.rootpath

    def _split_scope(self, nodeid: str) -> str:
        module = Path(nodeid.partition("::")[0])
        if module.parent != Path("tests/cluster"):
            return nodeid
        if brings_up_its_own(self._root / module):
            return "own clusters"
        return f"shared cluster {1 + (module.name >= _SECOND_HALF)}"


@cache
def brings_up_its_own(module: Path) -> bool:
    """Return whether a module of tests brings up clusters itself."""
    return _OWN.search(module.read_text(encoding="utf-8")) is not None
