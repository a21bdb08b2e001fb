"""The extender's pages over HTTP, for tests with a ``bench`` that has ``reasons`` of its own."""

import pytest
from aiohttp.test_utils import TestClient, TestServer

from extender.routes import Routes


@pytest.fixture
async def client(bench):
    routes = Routes(bench.cluster, bench.binder, lambda: bench.reasons)
    async with TestClient(TestServer(routes.app())) as made:
        yield made
