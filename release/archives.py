"""The command line as an archive for each platform, with all packages, for krew.

``lib`` has the packages without compiled code, ``lib-3.X`` the compiled ones for that Python. Equal
sources give equal bytes.
"""

import gzip
import io
import shutil
import tarfile
import tempfile
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Final

from localcluster.errors import BuildError
from localcluster.run import run

ROOT: Final = Path(__file__).parents[1]
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
# By krew's name of the operating system and architecture: uv's name of the platform.
PLATFORMS: Final = {
    ("linux", "amd64"): "x86_64-manylinux_2_28",
    ("linux", "arm64"): "aarch64-manylinux_2_28",
    ("darwin", "amd64"): "x86_64-apple-darwin",
    ("darwin", "arm64"): "aarch64-apple-darwin",
}
PROGRAM: Final = "kubectl-gpushare"
_SECONDS: Final = 600.0
# Files of a .dist-info folder that say from where and when this machine installed the package.
_OF_THE_BUILD: Final = frozenset({"direct_url.json", "uv_cache.json", "RECORD", "REQUESTED"})


def write(folder: Path, *, version: str) -> dict[tuple[str, str], Path]:
    """Write an archive for each of PLATFORMS; the wheel must be in ``folder``.

    Raises CommandError if a package has no wheel for one of them.
    """
    (wheel,) = folder.glob("*.whl")
    found: dict[tuple[str, str], Path] = {}
    with tempfile.TemporaryDirectory() as scratch:
        requirements = Path(scratch) / "requirements.txt"
        words = ["--frozen", "--quiet", "--no-default-groups", "--no-emit-project"]
        run(["uv", "export", *words, "--project", ROOT, "--output-file", requirements])
        for (system, machine), name in PLATFORMS.items():
            content = Path(scratch) / f"{system}-{machine}"
            content.mkdir()
            for python in PYTHONS:
                _install(content, requirements, wheel, platform=name, python=python)
            for each in (Path(__file__).with_name(PROGRAM), ROOT / "LICENSE"):
                shutil.copy(each, content / each.name)
            archive = folder / f"{PROGRAM}-{version}-{system}-{machine}.tar.gz"
            archive.write_bytes(packed(content))
            found[system, machine] = archive
    return found


def packed(content: Path) -> bytes:
    """Return a compressed archive of a folder's files; the same files give the same bytes."""
    out = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for path in sorted(each for each in content.rglob("*") if each.is_file()):
            entry = tarfile.TarInfo(str(path.relative_to(content)))
            entry.size = path.stat().st_size
            entry.mode = 0o755 if path.name == PROGRAM else 0o644
            with path.open("rb") as file:
                archive.addfile(entry, file)
    return out.getvalue()


def _install(content: Path, requirements: Path, wheel: Path, *, platform: str, python: str) -> None:
    target = content / "installed"
    words = ["--quiet", "--no-deps", "--only-binary=:all:", f"--target={target}"]
    chosen = [f"--python-platform={platform}", f"--python-version={python}"]
    run(
        ["uv", "pip", "install", *words, *chosen, "--requirements", requirements, wheel],
        seconds=_SECONDS,
    )
    shutil.rmtree(target / "bin", ignore_errors=True)
    for each in list(distributions(path=[str(target)])):
        _move(each, target, content / ("lib" if _is_pure(each) else f"lib-{python}"))
    shutil.rmtree(target)


def _is_pure(package: Distribution) -> bool:
    return "Root-Is-Purelib: true" in (package.read_text("WHEEL") or "")


def _move(package: Distribution, source: Path, target: Path) -> None:
    """Move the files of a package, except what differs between builds or is outside of its folder.

    RECORD has hashes of such files.
    """
    if package.files is None:
        raise BuildError(f"package {package.name} does not list its files")
    for each in package.files:
        path = source / each
        if ".." in each.parts or each.name in _OF_THE_BUILD or not path.exists():
            continue
        (target / each).parent.mkdir(parents=True, exist_ok=True)
        path.replace(target / each)
