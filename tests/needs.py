"""What tests use that takes minutes to build or install, by the name of its fixture."""

import os
import platform
import shutil
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from localcluster.build import Progress, build
from localcluster.errors import HostError, LocalClusterError
from localcluster.host import BUILD_NEEDS, Need, provide
from localcluster.imagebuild import gpushare_image
from localcluster.runtimes import provide_runtimes
from localcluster.state import cache_root, locked
from localcluster.toolkit import Setup, provide_toolkits
from localcluster.tools import tool

IS_PAINTING: Final = bool(os.environ.get("GPUSHARE_SCREENSHOTS"))
_BROWSER: Final = tuple(
    Need(f"`{command}`", package, lambda command=command: shutil.which(command) is not None)
    for command, package in (("chromium", "chromium"), ("chromedriver", "chromium-driver"))
)
_FONT: Final = Need(
    "the font Inter", "fonts-inter", lambda: any(Path("/usr/share/fonts").rglob("Inter*"))
)


def _cluster(say: Progress) -> Path:
    folder = build(say)
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


NEEDS: Final[Mapping[str, Callable[[Progress], Path]]] = {
    "binaries": _cluster,
    "image": gpushare_image,
    "node_runtimes": _runtimes,
    "library": _compiler,
    "browser": _browser,
    **{name: partial(tool, name) for name in ("helm", "kubeadm", "promtool")},
}


def prepare(names: Collection[str], say: Progress) -> None:
    """Build and install what is named; processes that do so at once wait for one another.

    What fails is said, and fails again in the test that uses it.
    """
    with locked(cache_root() / "needs.lock"):
        for name, get in NEEDS.items():
            if name in names:
                try:
                    get(say)
                except LocalClusterError as problem:
                    say(f"{name}: {problem}")


def need(name: str) -> Path:
    """Return what is named. Skips only where this machine could not install what that takes."""
    try:
        return NEEDS[name](print)
    except HostError as problem:
        if may_install():
            raise
        pytest.skip(str(problem))


def may_install() -> bool:
    """Say whether whatever is missing here is installed with apt: no reason to skip is left."""
    is_root = platform.system() == "Linux" and os.geteuid() == 0
    return is_root and shutil.which("apt-get") is not None
