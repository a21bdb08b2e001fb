"""A shared cluster for most cluster tests, with gpushare on it as a user would run it."""

import os
import platform
import re
from collections.abc import Generator, Iterator

import pytest

from localcluster.cluster import Cluster
from localcluster.gpushare import Gpushare, gpu_node
from localcluster.specs import NodeSpec
from localcluster.wait import tail
from localcluster.workloads import PRIORITY_CLASSES, Workloads, create_priority_classes
from tests.cluster.bringup import fresh, own_network
from tests.cluster.gated import COMPONENTS
from tests.cluster.history import History

# Each process of the run has a shared cluster of its own.
TESTS = "-".join(filter(None, ("gpushare-tests", os.environ.get("PYTEST_XDIST_WORKER"))))
LOG_LINES = 100
_OF_DEVICE_PLUGINS = re.compile(
    r"device plugin|listandwatch|registered client|aliyun\.com|endpoint", re.IGNORECASE
)
WHOLE = "whole"
PRIORITIES = {"lowest": 1, "lower": 5, "low": 10, "high": 100}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip cluster tests without root or Linux, and never for a failure."""
    if platform.system() == "Linux" and os.geteuid() == 0:
        return
    why = "needs root on Linux for namespaces and cgroups: run the tests as root"
    for item in items:
        if item.get_closest_marker("cluster"):
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the ends of logs with a failure: the cluster is removed later."""
    report = yield
    if report.failed and call.when == "call" and isinstance(item, pytest.Function):
        given = [getattr(each, "cluster", each) for each in item.funcargs.values()]
        clusters = {each.state.name: each for each in given if isinstance(each, Cluster)}
        for made in clusters.values():
            report.sections += [(f"log of {name}", text) for name, text in _logs(made)]
    return report


def _logs(made: Cluster) -> Iterator[tuple[str, str]]:
    """Give the ends of the logs of gpushare's programs, and what kubelets say of device plugins."""
    for path in sorted(made.state.logs.glob("*.log")):
        if path.stem.startswith(("extender", "deviceplugin")):
            yield path.stem, tail(path, LOG_LINES)
        elif path.stem.startswith("kubelet"):
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            said = [each for each in lines if _OF_DEVICE_PLUGINS.search(each)]
            yield path.stem, "\n".join(said[-LOG_LINES:])
    for path in sorted(made.state.path.glob("nodes/*/log/pods/gpushare-system_*/*/*.log")):
        yield "/".join(path.parts[-3:]), tail(path, LOG_LINES)


@pytest.fixture(scope="package")
def cluster() -> Iterator[Cluster]:
    """Bring up n1, n2, n3 with two cards each, n4 with four; a card has 16276 units of one MiB.

    n4's containerd has CDI off, so its plugin binds early. A fifth node lacks gpushare's label.
    """
    nodes = [gpu_node(name, 2) for name in ("n1", "n2", "n3")] + [gpu_node("n4", 4, cdi=False)]
    nodes.append(NodeSpec(WHOLE, cards=gpu_node(WHOLE, 2).cards))
    with own_network(), fresh(nodes, name=TESTS) as made:
        Gpushare(made).install()
        yield made


@pytest.fixture(scope="package")
def history(cluster: Cluster) -> Iterator[History]:
    """Record every change of every pod on the API server."""
    with History(cluster) as recorded:
        yield recorded


@pytest.fixture
def gpushare(cluster: Cluster, history: History) -> Iterator[Gpushare]:
    """Give gpushare on empty cards; check afterwards what must hold after each test."""
    made = Gpushare(cluster)
    made.wait_ready()
    yield made
    Workloads(cluster).delete_all()
    history.check_bound_once_and_whole()


@pytest.fixture
def pods(cluster: Cluster, gpushare: Gpushare) -> Workloads:
    return Workloads(cluster)


@pytest.fixture
def unguarded(gpushare: Gpushare) -> Iterator[None]:
    """Remove the policies about who writes decisions, as on a Kubernetes without them."""
    with gpushare.unguarded():
        yield


@pytest.fixture(scope="module")
def gates(cluster: Cluster) -> Iterator[None]:
    """Let the extender release gated pods, as the component for gates does.

    It is restarted at the end: for a minute it believes that it still may.
    """
    parts = ("access", "policy") if cluster.version.has_policies else ("access",)
    files = [f"--filename={COMPONENTS / 'gates' / name}.yaml" for name in parts]
    cluster.kubectl("apply", *files)
    yield
    cluster.kubectl("delete", *files)
    Gpushare(cluster).restart_extender()


@pytest.fixture(scope="module")
def priorities(cluster: Cluster) -> Iterator[None]:
    """Create the priority classes."""
    create_priority_classes(cluster, PRIORITIES)
    yield
    with cluster.api() as api:
        for name in PRIORITIES:
            api.request("DELETE", f"{PRIORITY_CLASSES}/{name}")
