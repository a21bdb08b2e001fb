"""The storage of the image's builder after killed builds, with the real buildah."""

import os
import platform
import subprocess
from pathlib import Path

import pytest

from localcluster.errors import BuildError
from localcluster.imagebuild import Builder

pytestmark = pytest.mark.skipif(
    platform.system() != "Linux" or os.geteuid() != 0,
    reason="needs root on Linux for buildah's mounts: run the tests as root",
)


class Storage:
    """A builder of one test, and its storage by buildah."""

    def __init__(self, folder: Path) -> None:
        self.said: list[str] = []
        self.folder = folder
        self.builder = Builder(folder, self.said.append)

    def buildah(self, *words: str) -> str:
        own = [f"--root={self.folder}/storage", f"--runroot={self.folder}/run"]
        argv = ["unshare", "--mount", "buildah", *own, "--storage-driver=vfs", *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout

    def image(self, key: str) -> str:
        """Make an image of this key, with a container of it as a killed build leaves it."""
        name = f"localhost/gpushare:{key}"
        first = self.buildah("from", "scratch").strip()
        self.buildah("commit", "--quiet", "--rm", first, name)
        return self.buildah("from", "--pull-never", name).strip()

    def images(self) -> list[str]:
        return self.buildah("images", "--format={{.Tag}}").split()


@pytest.fixture
def storage(buildah: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    monkeypatch.setattr("localcluster.imagebuild.snapshotter_for", lambda *_: "native")
    return Storage(tmp_path)


def test_containers_of_a_killed_build_do_not_hold_old_images(storage: Storage) -> None:
    storage.image("old")
    storage.image("new")
    (storage.folder / "new.tar").touch()
    storage.builder.tidy()
    storage.builder.forget(["old"])
    assert (storage.images(), storage.said) == (["new"], [])


def test_an_image_that_is_in_use_is_left_for_the_next_time_and_said(storage: Storage) -> None:
    storage.image("old")
    storage.builder.forget(["old"])
    assert len(storage.said) == 1
    assert "in use by a container" in storage.said[0]
    storage.builder.tidy()
    storage.builder.forget([])
    assert storage.images() == []


def test_a_broken_storage_is_emptied_and_taken_into_use_again(storage: Storage) -> None:
    storage.image("old")
    layers = storage.folder / "storage/vfs-layers/layers.json"
    layers.unlink()
    layers.mkdir()
    storage.builder.tidy()
    assert len(storage.said) == 1
    assert "is broken and is removed" in storage.said[0]
    assert storage.images() == []
    storage.image("new")
    assert storage.images() == ["new"]


def test_what_fails_in_a_storage_that_is_well_leaves_it_and_names_it(storage: Storage) -> None:
    storage.image("old")
    with pytest.raises(BuildError, match=f"remove {storage.folder}/storage"):
        storage.builder.export("never-built", storage.folder / "never-built.tar")
    storage.builder.tidy()
    assert (storage.images(), storage.said) == (["old"], [])
