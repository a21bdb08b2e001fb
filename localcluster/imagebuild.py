"""gpushare's image for a local cluster: its Dockerfile, built by buildah on debootstrap's base.

It needs no daemon and no registry. Images are cached by content: the same sources are built once,
and a change of the sources builds only their layer.
"""

import hashlib
import os
import re
import shutil
import tempfile
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from localcluster.build import Progress
from localcluster.errors import BuildError, CommandError, HostError
from localcluster.host import IMAGE_NEEDS, check_host, provide
from localcluster.nodefiles import snapshotter_for
from localcluster.run import run
from localcluster.state import cache_root, locked

ROOT: Final = Path(__file__).parents[1]
KEPT: Final = 4
KEPT_SECONDS: Final = 3600.0
"""Never removed within this time of its last use: another cluster may be about to read it."""

APART: Final = ("unshare", "--mount", "--propagation", "private")
"""buildah leaves mounts of its storage behind; in a namespace of its own they end with it."""

_IMAGE: Final = "localhost/gpushare"
_PACKAGES: Final = "localhost/gpushare-packages"
BASE: Final = "localhost/gpushare-base"
_BASE_PACKAGES: Final = ("python3", "python3-venv", "ca-certificates")
_UNUSED: Final = (
    "var/cache/apt",
    "var/lib/apt/lists",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
)
_CERTIFICATES: Final = "/etc/ssl/certs"
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_COPY: Final = re.compile(r"^COPY (?!--from)(.+) \S+$", re.MULTILINE)
_SECONDS: Final = 900.0


@dataclass(frozen=True)
class Mirror:
    """Where apt gets this machine's own distribution from."""

    address: str
    suite: str
    components: tuple[str, ...]


def copied(dockerfile: str) -> tuple[str, ...]:
    """Return what a Dockerfile (its text) copies from its context, in the same order."""
    return tuple(word for line in _COPY.findall(dockerfile) for word in line.split())


def content_key(files: Mapping[str, bytes]) -> str:
    """Return 16 characters that identify these files, by name and content."""
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def spent(used: Mapping[str, float], *, now: float) -> list[str]:
    """Return the keys to remove: not used for long, and not among the KEPT newest.

    ``used`` has the time of each last use, in seconds on the same clock as ``now``.
    """
    newest = sorted(used, key=lambda key: -used[key])
    return [key for key in newest[KEPT:] if now - used[key] > KEPT_SECONDS]


def mirror(targets: str, codename: str) -> Mirror:
    """Choose the mirror of ``codename`` from lines of address, codename and component."""
    rows = [line.split() for line in targets.splitlines()]
    fitting = [row for row in rows if len(row) == 3 and row[1] == codename]  # noqa: PLR2004
    if not fitting:
        text = (
            f"apt has no source for {codename!r}, of which the image's base is made; add this"
            " machine's own distribution to /etc/apt/sources.list"
        )
        raise HostError(text)
    address = fitting[0][0]
    components = dict.fromkeys(row[2] for row in fitting if row[0] == address)
    return Mirror(address, codename, tuple(components))


def image_name() -> str:
    """Return the image's name, as in the manifests."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return f"gpushare:{document['project']['version']}"


def gpushare_image(progress: Progress) -> Path:
    """Return an archive of the image for ``ctr images import``; build it if necessary.

    Raises HostError if the machine cannot build it, BuildError with the end of the builder's
    output.
    """
    files = _files()
    key = content_key({str(path.relative_to(ROOT)): path.read_bytes() for path in files})
    folder = cache_root() / "image"
    archive = folder / f"{key}.tar"
    with locked(folder / "build.lock"):
        if not archive.exists():
            check_host()
            provide(IMAGE_NEEDS)
            started = time.monotonic()
            progress("building gpushare's image ...")
            builder = Builder(folder, progress)
            builder.build(files, key)
            builder.export(key, archive)
            builder.forget(spent(_last_used(folder), now=_now(folder)))
            progress(f"built gpushare's image in {time.monotonic() - started:.0f} s")
        archive.touch()
    return archive


def _files() -> list[Path]:
    dockerfile = ROOT / "Dockerfile"
    named = [ROOT / name for name in copied(dockerfile.read_text(encoding="utf-8"))]
    return [dockerfile, *_expanded(named)]


def _expanded(paths: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        below = path.rglob("*") if path.is_dir() else [path]
        found += sorted(each for each in below if each.is_file())
    return [each for each in found if "__pycache__" not in each.parts]


def _last_used(folder: Path) -> dict[str, float]:
    return {each.stem: each.stat().st_mtime for each in folder.glob("*.tar")}


def _now(folder: Path) -> float:
    """Return the time on the clock of file times."""
    with tempfile.NamedTemporaryFile(dir=folder) as fresh:
        return Path(fresh.name).stat().st_mtime


@dataclass(frozen=True)
class Builder:
    """buildah with its own storage below ``folder``; for one process at a time."""

    folder: Path
    progress: Progress

    def build(self, files: Sequence[Path], key: str) -> None:
        """Build the image of ``files`` and name it, and the stage before it, after ``key``."""
        self.tidy()
        base = self._base()
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            context = Path(scratch)
            for path in files:
                target = context / path.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
            # buildah's cache goes by times and modes as well.
            for each in [context, *context.rglob("*")]:
                each.chmod(0o755 if each.is_dir() else 0o644)
                os.utime(each, (0, 0))
            words = ["build", "--isolation=chroot", "--network=host", "--layers", "--pull-never"]
            words += [f"--build-arg=BASE_IMAGE={base}", *trusted_certificates(), "--quiet"]
            self._run(*words, "--target=packages", f"--tag={_PACKAGES}:{key}", context)
            self._run(*words, f"--tag={_IMAGE}:{key}", context)

    def export(self, key: str, archive: Path) -> None:
        """Write the image as an archive with uncompressed layers, because every node reads it."""
        partial = archive.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        name = f"docker.io/library/{image_name()}"
        self._run("push", "--quiet", f"{_IMAGE}:{key}", f"docker-archive:{partial}:{name}")
        partial.rename(archive)

    def forget(self, keys: Sequence[str]) -> None:
        """Remove the archives of these keys, and every image without an archive.

        An image that cannot be removed is reported and tried again after the next build.
        """
        for key in keys:
            (self.folder / f"{key}.tar").unlink(missing_ok=True)
        kept = _last_used(self.folder)
        names = [each for each in self._images() if _key_of(each) not in {None, *kept}]
        try:
            if names:
                self._run("rmi", *names)
            self._run("rmi", "--prune")
        except BuildError as problem:
            self.progress(f"images of earlier builds are left behind: {problem}")

    def tidy(self) -> None:
        """Remove the containers of builds that were killed, which keep their images in use.

        If even that fails, the storage is broken: it is emptied, and everything is built again.
        """
        try:
            self._run("rm", "--all")
        except BuildError as problem:
            self.progress(f"what earlier builds left is broken and is removed: {problem}")
            for name in ("storage", "run"):
                shutil.rmtree(self.folder / name, ignore_errors=True)

    def _images(self) -> list[str]:
        return self._run("images", "--format={{.Name}}:{{.Tag}}").split()

    def _base(self) -> str:
        codename = this_codename()
        name = f"{BASE}:{codename}"
        if name in self._images():
            return name
        self.progress(f"making the image's base with debootstrap ({codename}) ...")
        wanted = ["--format", "$(REPO_URI) $(CODENAME) $(COMPONENT)", "Created-By: Packages"]
        chosen = mirror(run(["apt-get", "indextargets", *wanted]), codename)
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            root = Path(scratch) / "root"
            words = ["debootstrap", "--variant=minbase", f"--include={','.join(_BASE_PACKAGES)}"]
            words += [f"--components={','.join(chosen.components)}", chosen.suite]
            _told([*words, str(root), chosen.address])
            for unused in _UNUSED:
                shutil.rmtree(root / unused, ignore_errors=True)
            container = self._run("from", "scratch").strip()
            self._run("add", "--quiet", container, root, "/")
            self._run("config", f"--env=PATH={_PATH}", container)
            self._run("commit", "--quiet", "--rm", container, name)
        return name

    def _run(self, *words: str | Path) -> str:
        own = [f"--root={self.folder}/storage", f"--runroot={self.folder}/run"]
        driver = f"--storage-driver={storage_driver(self.folder)}"
        try:
            return _told([*APART, "buildah", *own, driver, *map(str, words)])
        except BuildError as problem:
            text = f"{problem}; where that is not of the Dockerfile, remove {self.folder}/storage"
            raise BuildError(text) from problem


def storage_driver(folder: Path) -> str:
    """Return buildah's driver for a storage in ``folder``."""
    mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    return "overlay" if snapshotter_for(folder, mountinfo) == "overlayfs" else "vfs"


def _key_of(image: str) -> str | None:
    """Return the key in the name of an image of gpushare; None for any other image."""
    name, _, key = image.rpartition(":")
    return key if name in {_IMAGE, _PACKAGES} else None


def trusted_certificates() -> list[str]:
    """Make the build trust this machine's certificate authorities; the image keeps none of them."""
    if not Path(_CERTIFICATES).is_dir():
        return []
    bundle = f"--build-arg=SSL_CERT_FILE={_CERTIFICATES}/ca-certificates.crt"
    return [f"--volume={_CERTIFICATES}:{_CERTIFICATES}:ro", bundle]


def this_codename() -> str:
    """Return this machine's release of its distribution, as ``bookworm``; HostError without one."""
    return _codename(Path("/etc/os-release").read_text(encoding="utf-8"))


def _codename(release: str) -> str:
    found = re.search(r'^VERSION_CODENAME="?([a-z]+)"?$', release, re.MULTILINE)
    if found is None:
        text = (
            "the image's base is made by debootstrap, of Debian or Ubuntu; this machine is another"
            " system: build the image elsewhere (docs/dev/release.md)"
        )
        raise HostError(text)
    return found[1]


def _told(words: Sequence[str]) -> str:
    try:
        return run(words, seconds=_SECONDS)
    except CommandError as problem:
        raise BuildError(f"gpushare's image could not be built: {problem}") from problem
