"""Ports for programs that the tests start."""

import itertools
import os
import socket
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def ports() -> Iterator[int]:
    """Return free ports of this machine, one after the other.

    They are below the range that the kernel gives to outgoing connections, and each worker has its
    own: a program that starts seconds later still finds its port free.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = 20_000 + 1_000 * worker
    return filter(_is_free, itertools.cycle(range(first, first + 1_000)))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
