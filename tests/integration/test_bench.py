"""The benches can run: their paper API server has all that the extender waits for."""

from bench import program
from bench.paper_api import pod


def test_the_extender_decides_before_the_paper_api_server() -> None:
    with program.running(2, 1, 1) as extender:
        assert extender.fits(pod("small", 1, version=1), "paper-1")
        assert not extender.fits(pod("large", 10**6, version=1), "paper-1")
