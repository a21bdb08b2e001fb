"""What tests of all kinds have: the NVML stand-in, built once."""

from pathlib import Path

import pytest

from localcluster.errors import HostError
from localcluster.nvml import build


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the stand-in for the driver's library; skips where there is no compiler."""
    try:
        return build(tmp_path_factory.mktemp("nvml"))
    except HostError as err:
        pytest.skip(str(err))
