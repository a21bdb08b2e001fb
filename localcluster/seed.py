"""Images unpacked once for all nodes; each container runtime starts with them.

A temporary containerd imports the archives into a folder of the cache. Each node gets a copy of its
records, links to its blobs, and its unpacked layers as read-only mounts. Nodes with CRI-O share
another store.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from localcluster import crio
from localcluster.errors import BuildError, CommandError
from localcluster.nodefiles import containerd_config, snapshotter_for
from localcluster.run import run
from localcluster.state import StateFolder, cache_root, locked
from localcluster.wait import wait_until

LINK: Final = "seed"
"""Name of the link in a node's folder that leads to what its containerd began with."""

ROOT: Final = "root"
STORAGE: Final = "storage"

_KEPT: Final = 2
_LAYERS: Final = "io.containerd.snapshotter.v1.{}/snapshots"
_BLOBS: Final = "io.containerd.content.v1.content"
_IMPORT_SECONDS: Final = 300.0
_START_SECONDS: Final = 30.0


def seed(
    state: StateFolder, binaries: Path, archives: Sequence[Path], *, cri_o: bool = False
) -> Path:
    """Return the folder with these archives' images unpacked; create what is missing.

    For containerd they are in `ROOT` below it; if a node has CRI-O (`cri_o`), also in `STORAGE`.
    All but the newest are removed unless a cluster uses them. Raises BuildError.
    """
    digest = hashlib.sha256(str(binaries).encode())
    for each in archives:
        with each.open("rb") as archive:
            digest.update(hashlib.file_digest(archive, "sha256").digest())
    place = cache_root() / "seeds"
    folder = place / digest.hexdigest()[:16]
    with locked(place / "seeds.lock"):
        if not (folder / ROOT).exists():
            _make(folder, binaries, archives)
        if cri_o and not (folder / STORAGE).exists():
            _make_storage(folder, archives)
        os.utime(folder)
        there = sorted((each for each in place.iterdir() if each.is_dir()), key=_modified)
        for old in there[:-_KEPT]:
            if not _used(old):
                shutil.rmtree(old)
        users = folder / "users"
        users.mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (users / state.ident).symlink_to(state.record)
    return folder


def plant(root: Path, node: Path) -> None:
    """Give a node (its folder) the seed in ``root``, before its namespaces are created."""
    layers = root / _LAYERS.format(_snapshotter(root))

    def ignored(folder: str, names: list[str]) -> list[str]:
        return names if Path(folder) == layers else []

    def link(source: str, target: str) -> None:
        if f"/{_BLOBS}/blobs/" in source:
            with contextlib.suppress(OSError):  # another file system
                os.link(source, target)
                return
        shutil.copy2(source, target)

    target = node / "containerd"
    shutil.copytree(root, target, ignore=ignored, copy_function=link)
    for each in layers.iterdir():
        (target / layers.relative_to(root) / each.name).mkdir()
    (node / LINK).symlink_to(root)


def _modified(path: Path) -> float:
    return path.stat().st_mtime


def _used(folder: Path) -> bool:
    return any(each.exists() for each in (folder / "users").glob("*"))


def _snapshotter(folder: Path) -> str:
    return snapshotter_for(folder, Path("/proc/self/mountinfo").read_text(encoding="utf-8"))


def _make(folder: Path, binaries: Path, archives: Sequence[Path]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    partial = folder / "partial"
    # Sockets have short paths only.
    with tempfile.TemporaryDirectory(prefix="localcluster-") as scratch:
        socket = Path(scratch) / "containerd.sock"
        config = Path(scratch) / "containerd.toml"
        text = containerd_config(
            binaries=binaries, folder=folder, snapshotter=_snapshotter(folder), cdi=False
        )
        config.write_text(text, encoding="utf-8")
        log = Path(scratch) / "containerd.log"
        words: list[str | Path] = [binaries / "containerd", "--config", config, "--address", socket]
        words += ["--root", partial, "--state", Path(scratch) / "state"]
        env = {**os.environ, "PATH": f"{binaries}:{os.environ.get('PATH', '')}"}
        with log.open("w") as output:
            process = subprocess.Popen(words, stdout=output, stderr=output, env=env)
        try:
            wait_until(
                "containerd to make its socket",
                lambda: None if socket.exists() else "no socket",
                seconds=_START_SECONDS,
                log=log,
            )
            ctr: list[str | Path] = [
                binaries / "ctr",
                "-a",
                socket,
                "-n",
                "k8s.io",
                "images",
                "import",
            ]
            for archive in archives:
                run([*ctr, archive], seconds=_IMPORT_SECONDS)
        except CommandError as problem:
            raise BuildError(f"the images could not be unpacked: {problem}") from problem
        finally:
            process.terminate()
            process.wait()
    partial.rename(folder / ROOT)


def _make_storage(folder: Path, archives: Sequence[Path]) -> None:
    partial = folder / "storage.partial"
    shutil.rmtree(partial, ignore_errors=True)
    crio.unpack(partial, archives)
    partial.rename(folder / STORAGE)
