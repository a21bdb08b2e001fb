"""Which tests go to the same process, where pytest has several (``pytest -n 2``)."""

import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

_OWN: Final = re.compile(r"\bCluster\.up\(|\btests\.cluster\.bringup\b|\bmatrix_cluster\(")


class ByCluster(LoadScopeScheduling):
    """One process has the tests of the shared cluster, one those that bring up their own.

    All others go to whichever is free. xdist's own groups go by a mark, which pytest 9.2 loses.
    """

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        super().__init__(config, log)
        self._root = config.rootpath

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        if not module.startswith("tests/cluster/"):
            return nodeid
        return "own clusters" if brings_up_its_own(self._root / module) else "the shared cluster"


@cache
def brings_up_its_own(module: Path) -> bool:
    """Say whether a module of tests brings up clusters itself."""
    return _OWN.search(module.read_text(encoding="utf-8")) is not None
