"""The files of a release: archives, krew's manifest, checksums and the bill of materials."""

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from localcluster.errors import BuildError, CommandError, UsageError
from localcluster.images import Image, archive
from localcluster.run import run
from release import archives, checksums, krew, sbom
from release.__main__ import command

LAUNCHER = Path(archives.__file__).with_name(archives.PROGRAM)
STATUS = """\
Package: zlib1g
Architecture: amd64
Version: 1:1.2.13.dfsg-1

Package: tzdata
Architecture: all
Version: 2025b-0+deb12u2
"""


def files(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_equal_files_give_equal_archives_whatever_their_times(tmp_path: Path) -> None:
    first = files(tmp_path / "first", a="1", b="2")
    second = files(tmp_path / "second", b="2", a="1")
    os.utime(second / "a", (1, 1))
    assert archives.packed(first) == archives.packed(second)


def test_only_the_program_in_an_archive_is_executable(tmp_path: Path) -> None:
    content = files(tmp_path, **{archives.PROGRAM: "#!", "lib": "x"})
    with tarfile.open(fileobj=io.BytesIO(archives.packed(content))) as opened:
        modes = {each.name: each.mode for each in opened}
    assert modes == {archives.PROGRAM: 0o755, "lib": 0o644}


def launched(folder: Path) -> subprocess.CompletedProcess[str]:
    shutil.copy(LAUNCHER, folder)
    words = [sys.executable, str(folder / LAUNCHER.name)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_the_plugin_runs_with_the_packages_next_to_it(tmp_path: Path) -> None:
    version = ".".join(map(str, sys.version_info[:2]))
    (tmp_path / f"lib-{version}").mkdir()
    program = "def main():\n    print('from lib')\n"
    files(tmp_path / "lib/gpusharectl", **{"__init__.py": "", "__main__.py": program})
    assert launched(tmp_path).stdout == "from lib\n"


def test_a_python_without_packages_is_told_which_ones_have_some(tmp_path: Path) -> None:
    (tmp_path / "lib-2.7").mkdir()
    (tmp_path / "lib-4.0").mkdir()
    found = launched(tmp_path)
    assert found.returncode == 1
    assert found.stderr.startswith("gpushare needs Python 2.7 or 4.0: python3 is 3.")


def test_krew_finds_each_archive_by_url_and_checksum(tmp_path: Path) -> None:
    packed = files(tmp_path, **{"a.tar.gz": "content"}) / "a.tar.gz"
    project = {"version": "1.2.3", "urls": {"Homepage": "https://example.com"}}
    path = krew.write(tmp_path, project, {("linux", "arm64"): packed}, url="https://example.com/v1")
    spec = yaml.safe_load(path.read_text())["spec"]
    assert spec["version"] == "v1.2.3"
    assert spec["platforms"] == [
        {
            "selector": {"matchLabels": {"os": "linux", "arch": "arm64"}},
            "uri": "https://example.com/v1/a.tar.gz",
            "sha256": hashlib.sha256(b"content").hexdigest(),
            "bin": "kubectl-gpushare",
        }
    ]


def test_the_checksums_find_a_changed_file(tmp_path: Path) -> None:
    files(tmp_path, a="1", b="2")
    checksums.write(tmp_path)
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    run(check, cwd=tmp_path)
    (tmp_path / "b").write_text("3")
    with pytest.raises(CommandError):
        run(check, cwd=tmp_path)


def test_only_an_earlier_release_is_replaced(tmp_path: Path) -> None:
    checksums.check(tmp_path / "missing")
    checksums.check(tmp_path)
    checksums.write(files(tmp_path, old="1"))
    checksums.forget(tmp_path)
    assert list(tmp_path.iterdir()) == []
    checksums.write(files(tmp_path, old="1"))
    files(tmp_path, mine="2")
    with pytest.raises(UsageError, match=r"not of a release \(mine\): name an empty folder"):
        checksums.forget(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"old", "SHA256SUMS", "mine"}


def test_the_bill_of_materials_has_the_packages_of_the_base(tmp_path: Path) -> None:
    status = files(tmp_path, status=STATUS) / "status"
    image = tmp_path / "image.tar"
    image.write_bytes(archive([Image("example:1", status, "var/lib/dpkg/")]))
    system = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nVERSION_ID="12"\nID=debian\n'
    found = sbom.debian_packages(sbom.file_of_image(image, "var/lib/dpkg/status") or "", system)
    assert [each["purl"] for each in found] == [
        "pkg:deb/debian/zlib1g@1%3A1.2.13.dfsg-1?arch=amd64&distro=debian-12",
        "pkg:deb/debian/tzdata@2025b-0%2Bdeb12u2?arch=all&distro=debian-12",
    ]
    testing = sbom.debian_packages(STATUS, "ID=debian\nVERSION_CODENAME=forky\n")
    assert testing[0]["purl"].endswith("?arch=amd64&distro=debian-forky")
    assert sbom.file_of_image(image, "etc/os-release") is None


def test_the_bill_of_materials_has_python_once() -> None:
    built = "home = /usr/local/bin\nimplementation = CPython\nversion_info = 3.13.9\n"
    (component,) = sbom.python(built, has_packages=True)
    assert component["purl"] == "pkg:generic/python@3.13.9"
    assert component["cpe"].startswith("cpe:2.3:a:python:python:3.13.9:")
    of_debian = built.replace("/usr/local/bin", "/usr/bin")
    assert sbom.python(of_debian, has_packages=True) == []  # python3 is a package there
    assert len(sbom.python(of_debian, has_packages=False)) == 1
    with pytest.raises(BuildError, match="names no version"):
        sbom.python("home = /usr/bin", has_packages=False)


def test_a_status_file_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(BuildError, match="without Package or Version: Package: broken"):
        sbom.debian_packages(f"{STATUS}\nPackage: broken\n", "")


def test_before_it_builds_anything_a_release_names_the_programs_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ["--registry", "registry.example.com/team", "--url", "https://downloads.example.com"]
    with pytest.raises(UsageError, match="not found in PATH: buildah, git, helm"):
        command.main([*words, "--folder", str(tmp_path / "dist")], standalone_mode=False)
    assert list(tmp_path.iterdir()) == []
