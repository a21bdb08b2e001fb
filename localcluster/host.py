"""Checks what the machine must have, and installs what is missing."""

import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localcluster.errors import CommandError, DeadlineError, HostError
from localcluster.run import run
from localcluster.state import cache_root, locked
from localcluster.wait import wait_until

_APT_SECONDS = 1800


@dataclass(frozen=True)
class Need:
    """One thing that the machine must have; `package` is the Debian package that provides it."""

    what: str
    package: str
    present: Callable[[], bool]


def _command(name: str) -> Callable[[], bool]:
    return lambda: shutil.which(name) is not None


def _seccomp_headers() -> bool:
    roots = (Path("/usr/include"), Path("/usr/local/include"))
    return any((root / "seccomp.h").is_file() for root in roots)


RUN_NEEDS = (
    Need("iproute2 (`ip`)", "iproute2", _command("ip")),
    Need("nftables (`nft`)", "nftables", _command("nft")),
    Need("util-linux (`nsenter`, `unshare`, `mount`)", "util-linux", _command("nsenter")),
)
BUILD_NEEDS = (
    Need("a C compiler (`cc`)", "gcc", _command("cc")),
    Need("the C library's headers", "libc6-dev", lambda: Path("/usr/include/stdio.h").is_file()),
    Need("pkg-config", "pkg-config", _command("pkg-config")),
    Need("libseccomp with its headers", "libseccomp-dev", _seccomp_headers),
)

CRIO_NEEDS = (
    Need("conmon", "conmon", _command("conmon")),
    Need("buildah", "buildah", _command("buildah")),
)
IMAGE_NEEDS = (
    Need("buildah", "buildah", _command("buildah")),
    Need("debootstrap", "debootstrap", _command("debootstrap")),
)


def check_host() -> None:
    """Raise HostError if this machine can never run a cluster, with all reasons at once."""
    problems = []
    if platform.system() != "Linux":
        problems.append(f"it runs {platform.system()}; wanted Linux: use a Linux machine")
    elif os.geteuid() != 0:
        problems.append(
            f"this is user id {os.geteuid()}; namespaces, mounts and cgroups need root: use sudo"
        )
    if not any(line.split()[2].startswith("cgroup") for line in _mounts()):
        problems.append("no cgroup hierarchy is mounted; mount cgroup2 at /sys/fs/cgroup")
    if problems:
        raise HostError("this machine cannot run a local cluster: " + "; ".join(problems))


def _mounts() -> list[str]:
    try:
        return Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []


def provide(needs: tuple[Need, ...]) -> None:
    """Announce and install with apt what is missing; raise HostError if that fails.

    Processes that need something at the same time wait for each other: apt does not wait for the
    lock of its lists.
    """
    missing = [need for need in needs if not need.present()]
    if not missing:
        return
    packages = [need.package for need in missing]
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        listed = "; ".join(f"{need.what} (Debian: {need.package})" for need in missing)
        cure = "as root: apt-get install " + " ".join(packages)
        raise HostError(f"this machine lacks: {listed}; install them ({cure}, or the like)")
    with locked(cache_root() / "apt.lock"):
        if missing := [need for need in missing if not need.present()]:
            _install(missing)


def _why_not_updated() -> str | None:
    """Update apt's lists, unless another apt does: a new machine may install its own updates."""
    try:
        _apt("update")
    except CommandError as problem:
        if "Could not get lock" in str(problem):
            return str(problem)
        raise
    return None


def _apt(*words: str) -> None:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    run(["apt-get", *words], env=env, seconds=_APT_SECONDS)


def _install(missing: list[Need]) -> None:
    packages = [need.package for need in missing]
    print(f"installing with apt: {' '.join(packages)}", file=sys.stderr, flush=True)
    install = ["-o", f"DPkg::Lock::Timeout={_APT_SECONDS}", "install", "-y"]
    try:
        wait_until("apt to be free", _why_not_updated, seconds=_APT_SECONDS, interval=1.0)
        _apt(*install, "--no-install-recommends", *packages)
    except (CommandError, DeadlineError) as problem:
        raise HostError(f"apt could not install {' '.join(packages)}: {problem}") from problem
    still = [need.what for need in missing if not need.present()]
    if still:
        raise HostError(f"apt installed {' '.join(packages)}, but still missing: {still}")
