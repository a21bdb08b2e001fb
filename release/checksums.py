"""SHA256SUMS, for ``sha256sum --check``, and the folder that it describes."""

import hashlib
from pathlib import Path
from typing import Final

from localcluster.errors import UsageError

NAME: Final = "SHA256SUMS"


def write(folder: Path) -> Path:
    """Write the checksum of every file in ``folder``."""
    lines = []
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        lines.append(f"{digest}  {path.name}\n")
    written = folder / NAME
    written.write_text("".join(lines), encoding="utf-8")
    return written


def check(folder: Path) -> None:
    """Raise UsageError unless ``folder`` is missing, is empty, or has only an earlier release."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder: name another with --folder")
    if others := {path.name for path in folder.iterdir()} - _listed(folder):
        shown = ", ".join(sorted(others)[:3])
        text = f"{folder} has files that are not of a release ({shown}): name an empty folder"
        raise UsageError(text)


def forget(folder: Path) -> None:
    """Delete the files of an earlier release in ``folder``."""
    check(folder)
    for name in _listed(folder):
        (folder / name).unlink(missing_ok=True)


def _listed(folder: Path) -> set[str]:
    sums = folder / NAME
    if not sums.is_file():
        return set()
    lines = sums.read_text(encoding="utf-8", errors="replace").splitlines()
    return {NAME, *(line.partition("  ")[2] for line in lines)}
