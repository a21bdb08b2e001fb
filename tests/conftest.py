"""What tests of all kinds have: what takes long is built before them; property tests; figures."""

import os
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from localcluster.errors import HostError
from localcluster.nvml import build
from tests.needs import LATER, need, prepare, wait
from tests.schedule import ByCluster

MEASURED = "measured"

# How long an example takes says what else the machine does, not whether it is right. The examples
# are the same each time; `make soak` looks for others.
settings.register_profile(
    "any machine",
    deadline=None,
    derandomize=not os.environ.get("GPUSHARE_LONG"),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any machine")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByCluster:
    return ByCluster(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put modules last that use what is built in the background."""
    last: dict[Path, int] = {}
    for item in items:
        ranks = [LATER.index(name) for name in _later(item)]
        last[item.path] = max(last.get(item.path, -1), *ranks, -1)
    items.sort(key=lambda item: last[item.path])


def _later(item: pytest.Item) -> list[str]:
    return [name for name in getattr(item, "fixturenames", ()) if name in LATER]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool, bool]:
    """Wait for what is still being built before the clock of the test runs."""
    for name in _later(item):
        wait(name)
    return (yield)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Have what the chosen tests need before any of them runs, or have it begun."""
    if session.config.option.collectonly:
        return
    wanted: set[str] = set()
    for item in session.items:
        if not item.get_closest_marker("skip"):
            wanted.update(getattr(item, "fixturenames", ()))
            wanted.update(["binaries"] if item.get_closest_marker("cluster") else [])
    prepare(wanted, lambda text: print(text, file=sys.__stderr__, flush=True))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was measured and counted: a figure is for people, no test depends on it."""
    found = [
        str(text)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "teardown"
        for name, text in report.user_properties
        if name == MEASURED
    ]
    if found:
        terminalreporter.section("measured on the cluster")
        for line in found:
            terminalreporter.write_line(line)


@pytest.fixture
def figures(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Callable[[str], None]:
    """Give what takes a line for the end of the run."""
    name = request.node.name
    return lambda text: record_property(MEASURED, f"{name}: {text}")


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the stand-in for the driver's library; skips where there is no compiler."""
    need("library")
    try:
        return build(tmp_path_factory.mktemp("nvml"))
    except HostError as err:
        pytest.skip(str(err))


def _needed(name: str) -> Callable[..., Path]:
    """Return a fixture that provides what ``tests.needs`` has under this name."""
    return pytest.fixture(scope="session", name=name)(lambda: need(name))


image = _needed("image")  # the archive of gpushare's image
node_runtimes = _needed("node_runtimes")  # CRI-O's programs; containerd 1.7 is built with them
helm = _needed("helm")
kubeadm = _needed("kubeadm")
promtool = _needed("promtool")
browser = _needed("browser")  # Chromium's program
