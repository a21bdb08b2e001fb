"""The bill of materials of the image (CycloneDX): its Python and its Debian packages."""

import json
import tarfile
import tempfile
from collections.abc import Mapping
from email.parser import HeaderParser
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import quote

from localcluster.errors import BuildError
from localcluster.run import run

ROOT: Final = Path(__file__).parents[1]
GROUPS: Final = ("--no-default-groups", "--group", "extender", "--group", "deviceplugin")
_STATUS: Final = "var/lib/dpkg/status"


def write(folder: Path, archive: Path, *, version: str) -> Path:
    """Write the packages of the image in an OCI archive.

    Debian's are those of the first platform; without dpkg in the base there are only Python's.
    """
    with tempfile.TemporaryDirectory() as scratch:
        exported = Path(scratch) / "python.json"
        words = ["--quiet", "--frozen", *GROUPS, "--format", "cyclonedx1.5"]
        run(["uv", "export", *words, "--project", ROOT, "--output-file", exported])
        document = json.loads(exported.read_text(encoding="utf-8"))
    document["components"] += debian_packages(file_of_image(archive, _STATUS) or "")
    path = folder / f"gpushare-{version}.cdx.json"
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
    return path


def debian_packages(status: str) -> list[dict[str, Any]]:
    """Return a component for each installed package of a dpkg status file."""
    found = []
    for paragraph in status.split("\n\n"):
        fields = HeaderParser().parsestr(paragraph)
        if not paragraph.strip():
            continue
        name, version = fields["Package"], fields["Version"]
        if name is None or version is None:
            text = "has a paragraph without Package or Version"
            raise BuildError(f"{_STATUS} of the image {text}: {paragraph[:99]}")
        reference = f"pkg:deb/debian/{name}@{quote(version)}?arch={fields['Architecture']}"
        found.append(
            {
                "type": "library",
                "bom-ref": reference,
                "name": name,
                "version": version,
                "purl": reference,
            }
        )
    return found


def file_of_image(archive: Path, name: str) -> str | None:
    """Return a file of the first image in an OCI archive, from its last layer; None if missing."""
    with tarfile.open(archive) as whole:
        described = json.load(_opened(whole, "index.json"))
        while "manifests" in described:
            described = json.load(_opened(whole, _blob(described["manifests"][0])))
        for layer in reversed(described["layers"]):
            with tarfile.open(fileobj=_opened(whole, _blob(layer))) as files:
                for entry in files:
                    if entry.name.removeprefix("./").lstrip("/") == name:
                        return _opened(files, entry.name).read().decode()
    return None


def _blob(described: Mapping[str, Any]) -> str:
    return f"blobs/{described['digest'].replace(':', '/')}"


def _opened(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    file = archive.extractfile(name)
    if file is None:
        raise BuildError(f"{name} of the image's archive is not a file")
    return file
