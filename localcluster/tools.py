"""Command-line tools that are no part of a cluster, built into the cache when one is asked for."""

import hashlib
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localcluster import build
from localcluster.errors import BuildError, UsageError
from localcluster.state import cache_root, locked
from localcluster.toolchain import go_command, go_environment

Progress = Callable[[str], None]

_SOURCES = Path(__file__).parent / "tools"
_LAST_LINES = 20


@dataclass(frozen=True)
class Tool:
    """One program; `module` is the folder of the go.mod that names it."""

    package: str
    module: Path
    link_flags: tuple[str, ...] = ()


def tools() -> dict[str, Tool]:
    """Return every tool there is, by name."""
    cluster = build.SOURCES / "go.mod"
    (kubernetes,) = [
        each for each in build.components(cluster.read_text("utf-8")) if each.name == "kubectl"
    ]
    return {
        "helm": Tool("helm.sh/helm/v4/cmd/helm", _SOURCES / "helm"),
        "kubeadm": Tool("k8s.io/kubernetes/cmd/kubeadm", build.SOURCES, kubernetes.link_flags),
        "promtool": Tool("github.com/prometheus/prometheus/cmd/promtool", _SOURCES / "promtool"),
    }


def tool(name: str, progress: Progress) -> Path:
    """Return the program called `name`; build it where the cache does not have it yet.

    Its place is named by what it alone is built from: no tool makes another, or the cluster, build
    anew. Raises UsageError for an unknown name, BuildError for anything the compiler says.
    """
    known = tools()
    if name not in known:
        raise UsageError(f"no such tool: {name!r}; there are: {', '.join(known)}")
    wanted = known[name]
    binary = cache_root() / f"{name}-{_content(wanted)}" / name
    if binary.exists():
        return binary
    with locked(binary.parent / "build.lock"):
        if not binary.exists():
            _build(name, wanted, binary, progress)
    return binary


def _content(wanted: Tool) -> str:
    digest = hashlib.sha256(repr((wanted.package, wanted.link_flags)).encode())
    for file in ("go.mod", "go.sum"):
        digest.update(b"\0" + (wanted.module / file).read_bytes())
    return digest.hexdigest()[:16]


def _build(name: str, wanted: Tool, binary: Path, progress: Progress) -> None:
    progress(f"building {name} ...")
    started = time.monotonic()
    go = go_command(wanted.module / "go.mod", cache_root())
    partial = binary.with_name(f".{name}.partial")
    flags = " ".join(("-s", "-w", *wanted.link_flags))
    done = subprocess.run(
        [go, "build", "-trimpath", "-ldflags", flags, "-o", partial, wanted.package],
        cwd=wanted.module,
        env={**go_environment(cache_root()), "CGO_ENABLED": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        text=True,
        errors="replace",
    )
    if done.returncode != 0:
        words = "\n".join(done.stdout.splitlines()[-_LAST_LINES:])
        raise BuildError(f"{name} ({wanted.package}) did not build:\n{words}")
    partial.rename(binary)
    progress(f"built {name} in {time.monotonic() - started:.0f} s")
