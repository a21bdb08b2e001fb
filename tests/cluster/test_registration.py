"""The plugin registers with a new kubelet, even if other programs are down."""

import datetime as dt
import json
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest

from localcluster.gpushare import CARD_MIB, Gpushare, plugin_of
from localcluster.nvml import CardSpec, write_state
from localcluster.wait import wait_until
from localcluster.workloads import Workloads, pod
from tests.cluster.expect import (
    LONG,
    api_server_paused,
    env_is_card_on_record,
    let_kubelet_forget,
    sums_are_right,
    wait_api_server,
    wait_bound,
    wait_plugin,
)

pytestmark = pytest.mark.cluster

NODE = "n3"
KUBELET = f"kubelet-{NODE}"
PLUGIN = plugin_of(NODE)
UNINITIALISED = 9  # NVML_ERROR_DRIVER_NOT_LOADED
CARDS = tuple(CardSpec(f"GPU-{NODE}-{place}", mem_mib=CARD_MIB) for place in range(2))
WAITING = ("waits-a", "waits-b", "waits-c")


@pytest.fixture
def away(gpushare: Gpushare) -> Iterator[Gpushare]:
    """Give gpushare; restart and restore what the test has changed."""
    yield gpushare
    write_state(gpushare.cluster.node_folder(NODE) / "nvml" / "state", CARDS)
    for each in ("kube-apiserver", KUBELET, PLUGIN):
        gpushare.cluster.start(each)
    wait_api_server(Workloads(gpushare.cluster))
    gpushare.wait_ready()


def bind_for_later(pods: Workloads) -> None:
    """Stop the kubelet and have pods bound to its node."""
    let_kubelet_forget(pods, NODE)
    pods.cluster.stop(KUBELET)
    pods.create(*(pod(name, 500, node=NODE) for name in WAITING))
    wait_bound(pods, *WAITING)


def start_kubelet(gpushare: Gpushare) -> float:
    """Start the kubelet; return how long after its socket the plugin was registered, in ms."""
    socket = gpushare.cluster.node_folder(NODE) / "kubelet/device-plugins/kubelet.sock"
    old = socket.stat().st_ctime_ns if socket.exists() else 0
    gpushare.cluster.start(KUBELET)
    appeared, registered = 0.0, 0.0

    def missing() -> str | None:
        nonlocal appeared, registered
        if not socket.exists() or socket.stat().st_ctime_ns == old:
            return "no new socket of the kubelet"
        appeared, registered = socket.stat().st_ctime_ns / 1e9, last_registered(gpushare)
        return None if registered > appeared else "not registered with the new kubelet"

    wait_until("the plugin to register", missing, seconds=60, log=gpushare.cluster.log_path(PLUGIN))
    return 1e3 * (registered - appeared)


def last_registered(gpushare: Gpushare) -> float:
    """Return when the plugin last logged its registration, in seconds since the epoch."""
    found = 0.0
    for line in gpushare.cluster.log_path(PLUGIN).read_text().splitlines():
        if line.startswith("{") and (said := json.loads(line))["message"] == "registered":
            found = dt.datetime.fromisoformat(said["time"]).timestamp()
    return found


# A running plugin keeps what it knows: other outages then change little.
AWAY = [("nothing", "lives"), ("driver", "lives")]
AWAY += [(what, "restarts") for what in ("API server", "driver")]
if LONG:
    AWAY += [("nothing", "restarts"), ("API server", "lives")]
    AWAY += [("fast driver", "lives"), ("fast driver", "restarts")]


@pytest.mark.parametrize(("what", "plugin"), AWAY)
def test_pods_that_wait_for_a_kubelet_are_not_failed_whatever_else_is_away(
    away: Gpushare, pods: Workloads, figures: Callable[[str], None], what: str, plugin: str
):
    cluster, nvml = away.cluster, away.cluster.node_folder(NODE) / "nvml" / "state"
    bind_for_later(pods)
    if plugin == "restarts":
        cluster.stop(PLUGIN)
    if what == "API server":
        cluster.stop("kube-apiserver")
    elif what == "fast driver":
        write_state(nvml, CARDS, delay_ms=250)
    elif what == "driver":
        write_state(nvml, CARDS, init=UNINITIALISED)
    cluster.start(PLUGIN)
    wait_plugin(away, NODE)
    # See expect.start_kubelet: the kubelet's pods come after the plugin, which waits for nothing.
    with nullcontext() if what == "API server" else api_server_paused(cluster):
        figures(f"registered {start_kubelet(away):.0f} ms after the kubelet's socket")
    if what == "API server":
        cluster.start("kube-apiserver")
        wait_api_server(pods)
    if what == "driver":
        if plugin == "restarts":
            wait_until("pods to be held back", lambda: not_held(pods), seconds=60)
        write_state(nvml, CARDS)  # NVIDIA's runtime starts no container without the driver
    pods.wait_running(*WAITING, seconds=60)
    env_is_card_on_record(pods, *WAITING)
    sums_are_right(away, pods)


def not_held(pods: Workloads) -> str | None:
    """Return which pod is not Pending with its reason."""
    for name in WAITING:
        status = pods.get(name)["status"]
        if status["phase"] != "Pending" or "cannot be used" not in json.dumps(status):
            return f"{name}: {status}"
    return None


def test_the_plugin_ends_on_sigterm(
    away: Gpushare, pods: Workloads, figures: Callable[[str], None]
):
    pods.run(pod("runs", 500, node=NODE))
    began = time.monotonic()
    away.cluster.stop(PLUGIN, grace=10)
    figures(f"ended {1e3 * (time.monotonic() - began):.0f} ms after SIGTERM")
    [left] = [each for each in away.cluster.processes() if each.name == PLUGIN]
    assert left.last_exit == 0
    folder = away.cluster.node_folder(NODE) / "kubelet/device-plugins"
    assert not list(folder.glob("gpushare.sock*"))
