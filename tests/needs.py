"""Build or install what tests need and what takes minutes, by the name of its fixture.

Run as a program, it builds what `prepare` leaves for later, while tests that do not need it run.
"""

import fcntl
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from localcluster.build import Progress, build
from localcluster.errors import BuildError, HostError, LocalClusterError
from localcluster.gpushare import ROOT
from localcluster.host import BUILD_NEEDS, CRIO_NEEDS, IMAGE_NEEDS, RUN_NEEDS, Need, provide
from localcluster.imagebuild import gpushare_image
from localcluster.kueue import controllers as kueue
from localcluster.runtimes import provide_runtimes
from localcluster.state import cache_root, locked
from localcluster.toolkit import Setup, provide_toolkits
from localcluster.tools import tool
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
    for command in ("docker-registry", "skopeo", "mmdebstrap")
)


def _cluster(say: Progress) -> Path:
    if int(_INOTIFY.read_text()) < _INSTANCES:
        say(f"writing {_INSTANCES} to {_INOTIFY}, for several clusters at a time")
        try:
            _INOTIFY.write_text(str(_INSTANCES))
        except OSError as problem:
            say(f"it stays as it is: {problem}; if a node does not come up, raise it yourself")
    provide(RUN_NEEDS)  # the tests start clusters in a network of their own, without the internet
    folder = build(say, chosen().version)
    provide_toolkits(Setup, say)
    return folder


def _compiler(_: Progress) -> Path:
    if may_install():
        provide(BUILD_NEEDS)
    return Path(str(shutil.which("cc")))


def _runtimes(progress: Progress) -> Path:
    return provide_runtimes({"containerd-1.7", "cri-o"}, build(progress), progress)["cri-o"]


def _browser(_: Progress) -> Path:
    provide((*_BROWSER, _FONT) if IS_PAINTING else _BROWSER)
    return Path(str(shutil.which("chromium")))


def _registry(_: Progress) -> Path:
    provide(_PUBLISHING)
    return Path(str(shutil.which("docker-registry")))


NEEDS: Final[Mapping[str, Callable[[Progress], Path]]] = {
    "binaries": _cluster,
    "image": gpushare_image,
    "node_runtimes": _runtimes,
    "library": _compiler,
    "browser": _browser,
    "axe": axe_core,
    "registry": _registry,
    "kueue": kueue.programs,
    **{name: partial(tool, name) for name in ("helm", "kubeadm", "kwok", "promtool")},
}


# Built while other tests run, in this order, with these packages of Debian. The packages are
# installed before: a test looks for changes of the machine's folders.
LATER: Final[Mapping[str, tuple[Need, ...]]] = {
    "image": IMAGE_NEEDS,
    "node_runtimes": CRIO_NEEDS,
    "helm": (),
    "kubeadm": (),
    "kwok": (),
    "promtool": (),
    "kueue": (),
}
_builders: list[subprocess.Popen[bytes]] = []  # an unreferenced Popen warns while it runs


def prepare(names: Collection[str], say: Progress) -> None:
    """Build and install what is named; concurrent processes wait for each other.

    What is in ``LATER`` is built in the background, and ``wait`` returns at its end. A failure is
    printed, and raised in each test that uses what failed.
    """
    with locked(cache_root() / "needs.lock"):
        for name in NEEDS:
            if name in names and name not in LATER:
                _provide(name, say)
        later = [name for name in LATER if name in names]
        for name in later:
            with suppress(HostError):  # raised again where it is built
                provide(LATER[name])
        _begin(later)


def _begin(names: Collection[str]) -> None:
    """Start a process that builds what is named and what no other process is building.

    It inherits a lock for each name, so ``wait`` in another process cannot return too early.
    """
    held = {}
    for name in names:
        file = _lock(name).open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
        else:
            held[name] = file
    if held:
        words = [f"{name}={file.fileno()}" for name, file in held.items()]
        numbers = [file.fileno() for file in held.values()]
        command = [sys.executable, "-m", "tests.needs", *words]
        _builders.append(
            subprocess.Popen(command, cwd=ROOT, pass_fds=numbers, stdout=sys.__stderr__)
        )
    for file in held.values():
        file.close()


def wait(name: str) -> None:
    """Return once no process is building what is named."""
    with locked(_lock(name)):
        pass


def _lock(name: str) -> Path:
    return cache_root() / f"needs-{name}.lock"


def _failure(name: str) -> Path:
    return cache_root() / f"needs-{name}.failed"


def _provide(name: str, say: Progress) -> None:
    _failure(name).unlink(missing_ok=True)
    try:
        NEEDS[name](say)
    except LocalClusterError as problem:
        say(f"{name}: {problem}")
        if not isinstance(problem, HostError):
            _failure(name).write_text(str(problem), encoding="utf-8")


def need(name: str) -> Path:
    """Return what is named. Skip only where this machine cannot install it."""
    if _failure(name).exists():
        raise BuildError(_failure(name).read_text(encoding="utf-8"))
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


if __name__ == "__main__":
    for wanted, _, held in (word.partition("=") for word in sys.argv[1:]):
        _provide(wanted, partial(print, flush=True))
        os.close(int(held))
