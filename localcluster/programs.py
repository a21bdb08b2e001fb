"""Programs that only some clusters need; each set is built when it is first requested."""

import hashlib
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localcluster.errors import BuildError
from localcluster.host import BUILD_NEEDS, provide
from localcluster.state import cache_root, locked
from localcluster.toolchain import go_command, go_environment

Progress = Callable[[str], None]

_LAST_LINES = 20


@dataclass(frozen=True)
class Programs:
    """Programs that one `go build` makes; the last part of a package's path is its program's name.

    `module` is the folder of the go.mod that requires the packages; `needs_c`: they link against
    the C library.
    """

    name: str
    module: Path
    packages: tuple[str, ...]
    link_flags: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    needs_c: bool = False


def provide_programs(wanted: Programs, progress: Progress) -> Path:
    """Return the folder of these programs; build them if they are not in the cache.

    The folder's name depends only on the sources of these programs, so no other change rebuilds
    them. Raises HostError for a missing compiler, BuildError for any compiler error.
    """
    folder = cache_root() / f"{wanted.name}-{_content(wanted)}"
    if folder.exists():
        return folder
    with locked(cache_root() / f".{wanted.name}.lock"):
        if not folder.exists():
            _build(wanted, folder, progress)
    return folder


def _content(wanted: Programs) -> str:
    what = (wanted.packages, wanted.link_flags, wanted.tags, wanted.needs_c)
    digest = hashlib.sha256(repr(what).encode())
    for file in ("go.mod", "go.sum"):
        digest.update(b"\0" + (wanted.module / file).read_bytes())
    own = (wanted.module / each for each in wanted.packages if each.startswith("./"))
    for source in sorted(path for folder in own for path in folder.rglob("*.go")):
        digest.update(b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def _build(wanted: Programs, folder: Path, progress: Progress) -> None:
    progress(f"building {wanted.name} ...")
    started = time.monotonic()
    if wanted.needs_c:
        provide(BUILD_NEEDS)
    go = go_command(wanted.module / "go.mod", cache_root())
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    flags = " ".join(("-s", "-w", *wanted.link_flags))
    command = [str(go), "build", "-trimpath", "-ldflags", flags, "-tags", ",".join(wanted.tags)]
    done = subprocess.run(
        [*command, "-o", f"{partial}/", *wanted.packages],
        cwd=wanted.module,
        env={**go_environment(cache_root()), "CGO_ENABLED": "1" if wanted.needs_c else "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        text=True,
        errors="replace",
    )
    if done.returncode != 0:
        words = "\n".join(done.stdout.splitlines()[-_LAST_LINES:])
        raise BuildError(f"{wanted.name} ({', '.join(wanted.packages)}) did not build:\n{words}")
    partial.rename(folder)
    progress(f"built {wanted.name} in {time.monotonic() - started:.0f} s")
