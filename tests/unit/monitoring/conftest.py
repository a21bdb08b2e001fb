"""promtool, built where it is not in the cache yet."""

from pathlib import Path

import pytest

from localcluster import tools


@pytest.fixture(scope="session")
def promtool() -> Path:
    return tools.tool("promtool", print)
