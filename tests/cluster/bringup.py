"""Bring up clusters for tests and trials, after removing what a killed run has left."""

import ctypes
import fcntl
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from localcluster import teardown
from localcluster.build import Progress
from localcluster.cluster import Cluster
from localcluster.errors import UsageError
from localcluster.gpushare import SCHEDULER_CONFIG, Gpushare, check_port, control_plane_node
from localcluster.run import run
from localcluster.specs import NodeSpec, PaperNode
from localcluster.state import StateFolder, state_root
from localcluster.versions import Features
from tests.cluster.kubernetes import chosen

TRIALS: Final = "gpushare-trials"
_NEW_NETWORK: Final = 0x40000000  # CLONE_NEWNET


@contextmanager
def alone(what: str) -> Iterator[None]:
    """Lock something that only one run can use; the end of the process unlocks it.

    Raises UsageError if another run uses it.
    """
    path = state_root() / f".{what}.run"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            text = f"another run of tests or trials has {what}: wait for its end"
            raise UsageError(text) from problem
        yield


@contextmanager
def own_network() -> Iterator[None]:
    """Give this thread and its child processes a network namespace with only a loopback.

    A cluster in it uses no address and no port of the machine, so several clusters can be up at a
    time, each with an extender on the same port.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/proc/self/task/{threading.get_native_id()}/ns/net").open() as before:
        _check(libc.unshare(_NEW_NETWORK))
        try:
            run(["ip", "link", "set", "lo", "up"])
            yield
        finally:
            _check(libc.setns(before.fileno(), 0))


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@contextmanager
def fresh(
    nodes: Sequence[NodeSpec] = (),
    paper_nodes: Sequence[PaperNode] = (),
    *,
    name: str,
    scheduler_config: Path | None = SCHEDULER_CONFIG,
    archives: Sequence[Path] = (),
    api_server_flags: Sequence[str] = (),
    features: Features | None = None,
    progress: Progress = print,
) -> Iterator[Cluster]:
    """Bring a cluster up, after removing one of its name; take it down at the end.

    It has the version of Kubernetes that the run has chosen. ``features`` replace that choice's.
    """
    kubernetes = chosen()
    with alone(name):
        teardown.down(StateFolder.of(name))
        cluster = Cluster.up(
            nodes,
            paper_nodes,
            name=name,
            version=kubernetes.version,
            features=features or kubernetes.features,
            scheduler_config=scheduler_config,
            archives=archives,
            api_server_flags=api_server_flags,
            progress=progress,
        )
        try:
            yield cluster
        finally:
            cluster.down()


@contextmanager
def with_extender_on_host(
    nodes: Sequence[NodeSpec] = (), *, name: str, progress: Progress = print
) -> Iterator[Cluster]:
    """Bring a cluster up whose extender runs on the host: only one at a time has its port."""
    with alone("extender-on-host"):
        teardown.down(StateFolder.of(name))
        check_port()
        with fresh(nodes, name=name, progress=progress) as cluster:
            yield cluster


@contextmanager
def of_image(image: Path, *nodes: NodeSpec, name: str) -> Iterator[Gpushare]:
    """Bring a cluster up for gpushare's image: these nodes and one of the control plane."""
    with fresh([*nodes, control_plane_node()], name=name, archives=[image]) as cluster:
        yield Gpushare(cluster)
