"""Builds packages of a Go module, and names what they are built from."""

import hashlib
import json
import re
import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import Final

from localcluster.errors import BuildError, CommandError
from localcluster.run import run
from localcluster.state import cache_root
from localcluster.toolchain import go_command, go_environment

_LAST_LINES: Final = 20
_DOWNLOAD_SECONDS: Final = 300


def module_version(folder: Path, module: str) -> str:
    """Return the version, such as `v1.34.4`, at which the go.mod in `folder` requires `module`.

    Raises BuildError if it does not require it.
    """
    text = (folder / "go.mod").read_text(encoding="utf-8")
    match = re.search(rf"^(?:require)?\s*{re.escape(module)} (v\S+)", text, re.MULTILINE)
    if match is None:
        raise BuildError(
            f"{folder / 'go.mod'} does not require {module}; add it to the tool block and tidy"
        )
    return match[1]


def module_folder(folder: Path, module: str) -> Path:
    """Return the folder with all files of a module that the go.mod in `folder` requires.

    It is downloaded if this machine does not have it. Raises BuildError.
    """
    go = go_command(folder / "go.mod", cache_root())
    command = [str(go), "mod", "download", "-json", module]
    environment = go_environment(cache_root())
    try:
        said = run(command, cwd=folder, env=environment, seconds=_DOWNLOAD_SECONDS)
    except CommandError as problem:
        raise BuildError(f"{module} was not downloaded: {problem}") from problem
    return Path(json.loads(said)["Dir"])


def content(folder: Path, packages: Collection[str], how: object) -> str:
    """Return 16 characters that depend only on what builds these packages.

    That is go.mod and go.sum in `folder`, the sources of the module's own packages (they begin with
    `./`), and the printed form of `how` they are built.
    """
    digest = hashlib.sha256(repr(how).encode())
    for file in ("go.mod", "go.sum"):
        digest.update(b"\0" + (folder / file).read_bytes())
    own = (folder / each for each in packages if each.startswith("./"))
    for source in sorted(path for package in own for path in package.rglob("*.go")):
        digest.update(b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def go_build(
    folder: Path,
    packages: Collection[str],
    output: Path | str,
    *,
    link_flags: Collection[str] = (),
    tags: Collection[str] = (),
    needs_c: bool = False,
) -> None:
    """Build packages that the go.mod in `folder` requires, stripped, to `output`.

    `needs_c`: they link against the C library. Raises BuildError with the last lines of the
    compiler.
    """
    go = go_command(folder / "go.mod", cache_root())
    flags = " ".join(("-s", "-w", *link_flags))
    command = [str(go), "build", "-trimpath", "-ldflags", flags, "-o", str(output)]
    if tags:
        command += ["-tags", ",".join(tags)]
    done = subprocess.run(
        [*command, *packages],
        cwd=folder,
        env={**go_environment(cache_root()), "CGO_ENABLED": "1" if needs_c else "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        text=True,
        errors="replace",
    )
    if done.returncode != 0:
        words = "\n".join(done.stdout.splitlines()[-_LAST_LINES:])
        raise BuildError(f"{', '.join(packages)} did not build:\n{words}")
