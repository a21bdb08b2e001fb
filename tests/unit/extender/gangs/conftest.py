"""Whatever states a gang, and whether its pods begin with gpushare's gate."""

import pytest

from gpushare.groups.model import Source


@pytest.fixture(params=Source)
def source(request: pytest.FixtureRequest) -> Source:
    return request.param


@pytest.fixture(params=[False, True], ids=["ungated", "gated"])
def is_gated(request: pytest.FixtureRequest) -> bool:
    return request.param
