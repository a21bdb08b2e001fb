"""Programs that only some clusters need; each set is built when it is first requested."""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localcluster.gobuild import content, go_build
from localcluster.host import BUILD_NEEDS, provide
from localcluster.state import cache_root, locked

Progress = Callable[[str], None]


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
    how = (wanted.packages, wanted.link_flags, wanted.tags, wanted.needs_c)
    folder = cache_root() / f"{wanted.name}-{content(wanted.module, wanted.packages, how)}"
    if folder.exists():
        return folder
    with locked(cache_root() / f".{wanted.name}.lock"):
        if not folder.exists():
            _build(wanted, folder, progress)
    return folder


def _build(wanted: Programs, folder: Path, progress: Progress) -> None:
    progress(f"building {wanted.name} ...")
    started = time.monotonic()
    if wanted.needs_c:
        provide(BUILD_NEEDS)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    go_build(
        wanted.module,
        wanted.packages,
        partial,
        link_flags=wanted.link_flags,
        tags=wanted.tags,
        needs_c=wanted.needs_c,
    )
    partial.rename(folder)
    progress(f"built {wanted.name} in {time.monotonic() - started:.0f} s")
