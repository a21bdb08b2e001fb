"""A cluster, and the extender's pages over HTTP before it."""

import pytest
from aiohttp.test_utils import TestClient, TestServer

from extender.routes import Routes
from tests.unit.extender.scripted import Bench


@pytest.fixture
def bench():
    return Bench(16, 16)


@pytest.fixture
def routes(bench):
    return Routes(bench.cluster, bench.binder, lambda: bench.reasons)


@pytest.fixture
async def client(routes):
    async with TestClient(TestServer(routes.app())) as made:
        yield made
