"""The files of a CRI-O node."""

import io
import json
import stat
import subprocess
import tarfile
import tomllib
from pathlib import Path

import pytest

from localcluster import crio
from localcluster.images import Image, archive


@pytest.mark.parametrize("driver", ["overlay", "vfs"])
def test_crio_gets_runtimes_and_folders(driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshotter = {"overlay": "overlayfs", "vfs": "native"}[driver]
    monkeypatch.setattr("localcluster.crio.snapshotter_for", lambda *_: snapshotter)
    files = crio.files(
        folder=Path("/n"),
        binaries=Path("/b"),
        pinns=Path("/p/pinns"),
        images=Path("/images"),
        handlers={"runc": Path("/n/crio/runc"), "nvidia": Path("/t/nvidia-container-runtime")},
        default_handler="nvidia",
    )
    found = tomllib.loads(files["crio.conf"])["crio"]
    assert found["storage_driver"] == driver
    assert found["storage_option"] == [f"{driver}.imagestore=/images"]
    runtime = found["runtime"]
    assert runtime["cdi_spec_dirs"] == ["/etc/cdi", "/var/run/cdi"]
    assert runtime["default_runtime"] == "nvidia"
    paths = {name: each["runtime_path"] for name, each in runtime["runtimes"].items()}
    assert paths == {"runc": "/n/crio/runc", "nvidia": "/t/nvidia-container-runtime"}


@pytest.mark.parametrize(("asked", "given"), [(-997, None), (0, 0), (1000, 1000)])
@pytest.mark.parametrize("option", ["--bundle", "-b"])
def test_no_oom_score_is_lowered_and_no_huge_pages_are_limited(
    tmp_path: Path, asked: int, given: int | None, option: str
) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    config = bundle / "config.json"
    limits = {"hugepageLimits": [{"pageSize": "2MB", "limit": 0}], "pids": {}}
    config.write_text(json.dumps({"process": {"oomScoreAdj": asked}, "linux": limits}, indent="\t"))
    runc = tmp_path / "the runc"
    runc.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    script = tmp_path / "script"
    script.write_text(crio.runc_script(runc))
    for each in (runc, script):
        each.chmod(each.stat().st_mode | stat.S_IXUSR)
    words = ["--root=/r", "create", option, str(bundle), "--pid-file", "p", "id"]
    said = subprocess.run([script, *words], check=True, capture_output=True, text=True).stdout
    assert said.splitlines() == words
    own = int(Path("/proc/self/oom_score_adj").read_text())
    wanted = own if given is None else given
    found = json.loads(config.read_text())
    assert found["process"] == {"oomScoreAdj": wanted}
    assert found["linux"] == {"hugepageLimits": [], "pids": {}}


def test_every_image_of_an_archive_is_named_for_buildah(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"1")
    layout = tmp_path / "layout.tar"
    layout.write_bytes(archive([Image(f"example/{n}:1", tmp_path / "one") for n in ("a", "b")]))
    docker = tmp_path / "docker.tar"
    manifest = json.dumps([{"RepoTags": ["docker.io/library/c:2"]}]).encode()
    with tarfile.open(docker, "w") as opened:
        entry = tarfile.TarInfo("manifest.json")
        entry.size = len(manifest)
        opened.addfile(entry, io.BytesIO(manifest))
    assert crio.sources(layout) == [f"oci-archive:{layout}:example/{n}:1" for n in ("a", "b")]
    assert crio.sources(docker) == [f"docker-archive:{docker}:docker.io/library/c:2"]
