"""Build and install what tests need and what takes minutes, by the name of its fixture.

`make test` runs this program before the tests. A run of pytest by hand does the same for the
tests that it has chosen, before the first of them.
"""

import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from localcluster.build import Progress, build
from localcluster.errors import HostError, LocalClusterError
from localcluster.host import BUILD_NEEDS, IMAGE_NEEDS, RUN_NEEDS, Need, check_host, provide
from localcluster.imagebuild import gpushare_image
from localcluster.kueue import controllers as kueue
from localcluster.runtimes import provide_runtimes
from localcluster.state import cache_root, locked
from localcluster.toolkit import Setup, provide_toolkits
from localcluster.tools import tool
from localcluster.versions import DEFAULT
from tests import patience, release_build
from tests.cluster.kubernetes import chosen
from tests.npm_packages import axe_core

IS_PAINTING: Final = bool(os.environ.get("GPUSHARE_SCREENSHOTS"))
_BROWSER: Final = tuple(
    Need(f"`{command}`", package, lambda command=command: shutil.which(command) is not None)
    for command, package in (("chromium", "chromium"), ("chromedriver", "chromium-driver"))
)
_FONT: Final = Need(
    "the font Inter", "fonts-inter", lambda: any(Path("/usr/share/fonts").rglob("Inter*"))
)


# Each node of a cluster uses 8 inotify instances; the usual limit is 128.
_INOTIFY: Final = Path("/proc/sys/fs/inotify/max_user_instances")
_INSTANCES: Final = 512


_PUBLISHING: Final = tuple(
    Need(f"`{command}`", command, lambda command=command: shutil.which(command) is not None)
    for command in ("docker-registry", "skopeo")
)


def _cluster(say: Progress) -> Path:
    check_host()
    if int(_INOTIFY.read_text()) < _INSTANCES:
        say(f"writing {_INSTANCES} to {_INOTIFY}, for several clusters at a time")
        try:
            _INOTIFY.write_text(str(_INSTANCES))
        except OSError as problem:
            say(f"it stays as it is: {problem}; if a node does not come up, raise it yourself")
    provide(RUN_NEEDS)  # the tests start clusters in a network of their own, without the internet
    build(say, DEFAULT)  # for clusters that do not depend on the choice
    folder = build(say, chosen().version)
    provide_toolkits(Setup, say)
    return folder


def _on_cluster(provided: Callable[[Progress], Path], say: Progress) -> Path:
    """Provide what only tests on a cluster need: nothing where they are skipped."""
    check_host()
    return provided(say)


def _compiler(_: Progress) -> Path:
    if may_install():
        provide(BUILD_NEEDS)
    return Path(str(shutil.which("cc")))


def _runtimes(progress: Progress) -> Path:
    return provide_runtimes({"containerd-1.7", "cri-o"}, build(progress), progress)["cri-o"]


def _browser(_: Progress) -> Path:
    provide((*_BROWSER, _FONT) if IS_PAINTING else _BROWSER)
    return Path(str(shutil.which("chromium")))


def _buildah(_: Progress) -> Path:
    provide(IMAGE_NEEDS)
    return Path(str(shutil.which("buildah")))


def _registry(_: Progress) -> Path:
    provide(_PUBLISHING)
    return Path(str(shutil.which("docker-registry")))


Needs = Mapping[str, Callable[[Progress], Path]]
# Programs in Go keep all processors busy; the others mostly wait for the network and the disk.
_COMPILED: Final[Needs] = {
    "helm": partial(tool, "helm"),
    "binaries": _cluster,
    "promtool": partial(tool, "promtool"),
    "kubeadm": partial(_on_cluster, partial(tool, "kubeadm")),
    "node_runtimes": partial(_on_cluster, _runtimes),
    "kueue": partial(_on_cluster, kueue.programs),
    "kwok": partial(_on_cluster, partial(tool, "kwok")),
}
_FETCHED: Final[Needs] = {
    "library": _compiler,
    "browser": _browser,
    "axe": axe_core,
    "buildah": partial(_on_cluster, _buildah),
    "registry": partial(_on_cluster, _registry),
    "image": gpushare_image,
    "release_storage": partial(_on_cluster, release_build.storage),
}
NEEDS: Final = {**_COMPILED, **_FETCHED}


def prepare(needs: Needs, say: Progress) -> list[str]:
    """Build and install one after the other; return the names of what failed.

    What this machine cannot have is only said: tests that need it are skipped. Nothing is said of
    what is there already.
    """
    failed = []
    for name, provided in needs.items():
        began = time.monotonic()
        try:
            provided(say)
        except LocalClusterError as problem:
            if isinstance(problem, HostError) and not may_install():
                say(f"{name}: left out, so tests that need it are skipped: {problem}")
            else:
                say(f"{name}: FAILED: {problem}")
                failed.append(name)
        else:
            if (took := time.monotonic() - began) >= 1:
                say(f"{name}: ready, after {took:.0f} s")
    return failed


def prepare_chosen(names: Collection[str], say: Progress) -> None:
    """Prepare what chosen tests need. A failure is raised again in each test that needs it.

    Concurrent processes wait for each other.
    """
    chosen = {name: NEEDS[name] for name in NEEDS if name in names}
    if chosen:
        with locked(cache_root() / "needs.lock"):
            prepare(chosen, say)


def need(name: str) -> Path:
    """Return what is named. Skip only where this machine cannot install it."""
    try:
        return NEEDS[name](print)
    except HostError as problem:
        if may_install():
            raise
        pytest.skip(str(problem))


def may_install() -> bool:
    """Return whether apt installs what is missing, so that no test is skipped."""
    is_root = platform.system() == "Linux" and os.geteuid() == 0
    return is_root and shutil.which("apt-get") is not None


def main(*lanes: Needs) -> str | None:
    """Prepare everything, each lane beside the others; return what failed, to be printed."""
    patience.set_default()
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:5.0f} s  {text}", flush=True)  # noqa: T201

    say("preparing what tests need; the first run on a machine builds and installs it")
    with locked(cache_root() / "needs.lock"), ThreadPoolExecutor() as pool:
        running = [pool.submit(prepare, lane, say) for lane in lanes]
        failed = [name for each in running for name in each.result()]
    if failed:
        return f"tests cannot run without: {', '.join(failed)}; the reasons are above"
    say("all that tests need is ready")
    return None


if __name__ == "__main__":
    sys.exit(main(_COMPILED, _FETCHED))
