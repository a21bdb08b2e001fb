"""The chart of a release: a package whose pods use the image of the release."""

import tarfile
from pathlib import Path

import pytest

from localcluster.imagebuild import image_name
from localcluster.run import run
from release import chart

VERSION = image_name().partition(":")[2]


@pytest.fixture
def package(tmp_path: Path, helm: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(helm.parent), prepend=":")
    return chart.write(tmp_path, version=VERSION, repository="registry.example.com/team/gpushare")


def test_the_packaged_chart_uses_the_image_of_the_release(package: Path, helm: Path) -> None:
    words = ["template", "gpushare", package, "--namespace", "gpushare-system"]
    images = [line.split()[-1] for line in run([helm, *words]).splitlines() if " image:" in line]
    assert set(images) == {f'"registry.example.com/team/gpushare:{VERSION}"'}


def test_the_packaged_chart_has_files_where_the_folder_has_links(package: Path) -> None:
    with tarfile.open(package) as opened:
        entries = opened.getmembers()
    assert [each.name for each in entries if not each.isreg()] == []
    assert "gpushare/files/base/deviceplugin.yaml" in {each.name for each in entries}
