"""What tests of all kinds have: the NVML stand-in, built once; property tests without a clock."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from localcluster.errors import HostError
from localcluster.nvml import build

# How long an example takes says what else the machine does, not whether it is right.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the stand-in for the driver's library; skips where there is no compiler."""
    try:
        return build(tmp_path_factory.mktemp("nvml"))
    except HostError as err:
        pytest.skip(str(err))
