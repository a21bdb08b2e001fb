"""Build what tests need before they run, set up property tests, and print figures."""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from extender.event_loop import EventLoop
from gpushare.process.polled_loop import SelectorLoop
from localcluster.errors import HostError
from localcluster.nvml import build
from tests import patience
from tests.needs import need, prepare_chosen
from tests.schedule import ByCluster

MEASURED = "measured"

patience.set_default()

# The time of an example depends on the machine's load. The examples are the same each time;
# `make soak` searches for others.
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


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run the extender's tests, and those of what it shares, on the loop that it uses."""
    if "deviceplugin" in item.path.parts:
        return {"asyncio": SelectorLoop}
    return {"uvloop": EventLoop}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what the chosen tests need, before the time of any test counts."""
    if session.config.option.collectonly:
        return
    wanted: set[str] = set()
    for item in session.items:
        if not item.get_closest_marker("skip"):
            wanted.update(getattr(item, "fixturenames", ()))
            wanted.update(["binaries"] if item.get_closest_marker("cluster") else [])
    prepare_chosen(wanted, lambda text: print(text, file=sys.__stderr__, flush=True))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was measured and counted; no test depends on it."""
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
    """Give a function that adds a line to the end of the run's output."""
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


@pytest.fixture(scope="session")
def limiting_library(library: Path) -> Path:
    """The folder with the stand-in of a driver that can limit a container's memory."""
    return build(library.parent, limits_memory=True)


def _needed(name: str) -> Callable[..., Path]:
    """Return a fixture that provides what ``tests.needs`` has under this name."""
    return pytest.fixture(scope="session", name=name)(lambda: need(name))


image = _needed("image")  # the archive of gpushare's image
node_runtimes = _needed("node_runtimes")  # CRI-O's programs; containerd 1.7 is built with them
helm = _needed("helm")
kubeadm = _needed("kubeadm")
promtool = _needed("promtool")
kwok = _needed("kwok")  # Karpenter with nodes that are only objects
kueue = _needed("kueue")  # the programs of Kueue and of controllers of jobs
registry = _needed("registry")  # the program of a registry of images
browser = _needed("browser")  # Chromium's program
buildah = _needed("buildah")
release_storage = _needed("release_storage")  # the folder of images where a release was built
axe = _needed("axe")  # axe-core's script
