"""The bill of materials of the image (CycloneDX): Python, its packages, and Debian's."""

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
_SYSTEM: Final = "usr/lib/os-release"  # the file that /etc/os-release links to
_ENVIRONMENT: Final = "opt/gpushare/pyvenv.cfg"  # of the image's Python
_OF_THE_SYSTEM: Final = "/usr/bin"  # where a distribution's own Python is


def write(folder: Path, archive: Path, *, version: str) -> Path:
    """Write what is in the image in an OCI archive.

    Debian's packages are those of the first platform; without dpkg in the base there are none.
    """
    with tempfile.TemporaryDirectory() as scratch:
        exported = Path(scratch) / "python.json"
        words = ["--quiet", "--frozen", *GROUPS, "--format", "cyclonedx1.5"]
        run(["uv", "export", *words, "--project", ROOT, "--output-file", exported])
        document = json.loads(exported.read_text(encoding="utf-8"))
    status = file_of_image(archive, _STATUS) or ""
    document["components"] += debian_packages(status, file_of_image(archive, _SYSTEM) or "")
    environment = file_of_image(archive, _ENVIRONMENT)
    if environment is None:
        raise BuildError(f"the image has no {_ENVIRONMENT}, which names its Python")
    document["components"] += python(environment, has_packages=bool(status))
    path = folder / f"gpushare-{version}.cdx.json"
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
    return path


def python(environment: str, *, has_packages: bool) -> list[dict[str, Any]]:
    """Return a component for the Python of a pyvenv.cfg, unless it is one of Debian's packages."""
    fields = _assignments(environment)
    if fields.get("home") == _OF_THE_SYSTEM and has_packages:
        return []
    version = fields.get("version_info") or fields.get("version")
    if version is None:
        raise BuildError(f"{_ENVIRONMENT} of the image names no version: {environment[:99]}")
    reference = f"pkg:generic/python@{version}"
    return [
        {
            "type": "application",
            "bom-ref": reference,
            "name": "python",
            "version": version,
            "cpe": f"cpe:2.3:a:python:python:{version}:*:*:*:*:*:*:*",
            "purl": reference,
        }
    ]


def debian_packages(status: str, system: str) -> list[dict[str, Any]]:
    """Return a component for each installed package of a dpkg status file.

    ``system`` is the os-release file, which says of which distribution they are.
    """
    of = _assignments(system)
    vendor = of.get("ID", "debian")
    release = of.get("VERSION_ID") or of.get("VERSION_CODENAME")  # Debian testing has no number
    distro = f"&distro={vendor}-{release}" if release else ""
    found = []
    for paragraph in status.split("\n\n"):
        fields = HeaderParser().parsestr(paragraph)
        if not paragraph.strip():
            continue
        name, version = fields["Package"], fields["Version"]
        if name is None or version is None:
            text = "has a paragraph without Package or Version"
            raise BuildError(f"{_STATUS} of the image {text}: {paragraph[:99]}")
        arch = f"arch={fields['Architecture']}"
        reference = f"pkg:deb/{vendor}/{name}@{quote(version)}?{arch}{distro}"
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


def _assignments(text: str) -> dict[str, str]:
    """Return the names and values of lines such as ``NAME="value"``."""
    lines = (line.partition("=") for line in text.splitlines())
    return {name.strip(): value.strip().strip("\"'") for name, is_there, value in lines if is_there}


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
