"""The files of a release install gpushare: from a registry and from an archive, as documented."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from localcluster import namespaces
from localcluster.cluster import Cluster
from localcluster.gpushare import control_plane_node, gpu_node
from localcluster.imagebuild import ROOT, image_name
from localcluster.run import run
from localcluster.wait import patient, wait_until
from localcluster.workloads import Workloads, pod
from release import archives
from tests import markdown, release_build
from tests.cluster.bringup import fresh
from tests.cluster.expect import create_again
from tests.release_build import OWN

pytestmark = pytest.mark.cluster

VERSION: Final = image_name().partition(":")[2]
PORT: Final = 5000
ELF_MACHINES: Final = {0x3E: "amd64", 0xB7: "arm64"}


@dataclass(frozen=True)
class Release:
    """A folder with ``dist``, published in a registry of the cluster's host."""

    cluster: Cluster
    folder: Path
    registry: str
    helm: Path

    def run(self, *words: str | Path) -> str:
        env = {**os.environ, "KUBECONFIG": str(self.cluster.kubeconfig)}
        return run(words, env=env, cwd=self.folder, seconds=180)


@pytest.fixture(scope="module")
def release(
    release_storage: Path, helm: Path, registry: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Release]:
    folder = tmp_path_factory.mktemp("release")
    nodes = [gpu_node("n1", 2), control_plane_node()]
    with fresh(nodes, name="gpushare-release", scheduler_config=None) as cluster:
        address = f"{cluster.network.host}:{PORT}"
        with _served(registry, folder, address):
            made = Release(cluster, folder, f"{address}/team", helm)
            release_build.make(folder, release_storage, helm, registry=made.registry)
            _publish(made)
            yield made


@contextmanager
def _served(program: Path, folder: Path, address: str) -> Iterator[None]:
    """Run a registry until the end of the block."""
    settings = {
        "version": "0.1",
        "storage": {"filesystem": {"rootdirectory": str(folder / "registry")}},
        "http": {"addr": address},
    }
    (folder / "registry.yaml").write_text(yaml.safe_dump(settings))
    with (folder / "registry.log").open("w") as log:
        words = [program, "serve", folder / "registry.yaml"]
        running = subprocess.Popen(words, stdout=log, stderr=log)

    def silent() -> str | None:
        try:
            urllib.request.urlopen(f"http://{address}/v2/").close()
        except OSError:
            return (folder / "registry.log").read_text()[-500:]
        return None

    try:
        wait_until("the registry to answer", silent, seconds=60)
        yield
    finally:
        running.terminate()
        running.wait(timeout=patient(60))


def _publish(release: Release) -> None:
    """Run the documented commands; the registry here has no certificate."""
    tools = release.folder / "bin"
    tools.mkdir()
    flags = {release.helm: "--plain-http", shutil.which("skopeo"): "--dest-tls-verify=false"}
    for program, flag in flags.items():
        tool = tools / Path(str(program)).name
        tool.write_text(f'#!/bin/sh\nexec {program} "$@" {flag}\n')
        tool.chmod(0o755)
    (block,) = [
        each.text for each in markdown.blocks(ROOT / "docs/dev/release.md") if "skopeo" in each.text
    ]
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    commands = block.replace("registry.example.com/team", release.registry)
    run(["bash", "-ec", commands], env=env, cwd=release.folder, seconds=300)


def test_one_helm_install_from_a_registry_runs_pods_on_shares(release: Release) -> None:
    cluster = release.cluster
    # No node trusts a registry without a certificate, so one command there pulls the image.
    pull = ["-n", "k8s.io", "images", "pull", "--plain-http"]
    name = f"{release.registry}/gpushare:{VERSION}"
    ctr = [str(cluster.binaries / "ctr"), *pull, name]
    for node in cluster.node_names:
        run(namespaces.enter(cluster.state, node, ctr), seconds=120)

    chart = f"oci://{release.registry}/charts/gpushare"
    place = ("--namespace", "gpushare-system", "--create-namespace")
    values = "scheduler=second,secondScheduler.replicas=1,plugin.runtimeClassName="
    flags = ("--plain-http", "--wait", f"--timeout={patient(180):.0f}s", "--set", values)
    release.run(release.helm, "install", "gpushare", chart, *place, *flags)

    workloads = Workloads(cluster)
    create_again(workloads, pod("notebook", 8))
    workloads.wait_running("notebook")
    assert workloads.get("notebook")["spec"]["schedulerName"] == "gpushare-scheduler"
    assert workloads.environment("notebook")["ALIYUN_COM_GPU_MEM_CONTAINER"] == "8"


def test_krews_archive_has_the_checksum_of_its_manifest_and_runs(release: Release) -> None:
    dist = release.folder / "dist"
    platforms = yaml.safe_load((dist / "gpushare.yaml").read_text())["spec"]["platforms"]
    (mine,) = [
        each
        for each in platforms
        if each["selector"]["matchLabels"] == {"os": "linux", "arch": OWN}
    ]
    archive = dist / Path(mine["uri"]).name
    assert f"{mine['sha256']}  {archive.name}\n" in (dist / "SHA256SUMS").read_text()
    unpacked = release.folder / "plugin"
    with tarfile.open(archive) as opened:
        opened.extractall(unpacked, filter="data")
    text = release.run(unpacked / mine["bin"], "inspect", "-o", "json")
    assert [each["name"] for each in json.loads(text)["nodes"]] == ["n1"]


def test_two_builds_of_the_plugin_give_equal_archives(
    release_storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{ROOT}/.uv/bin")
    mine = {key: name for key, name in archives.PLATFORMS.items() if key == ("linux", OWN)}
    monkeypatch.setattr(archives, "PLATFORMS", mine)
    monkeypatch.setattr(archives, "PYTHONS", archives.PYTHONS[:1])
    digests = set[str]()
    for name in ("first", "second"):
        folder = tmp_path / name
        run(["uv", "build", "--wheel", "--quiet", "--out-dir", folder, ROOT], seconds=300)
        (archive,) = archives.write(folder, version=VERSION).values()
        digests.add(hashlib.sha256(archive.read_bytes()).hexdigest())
    assert len(digests) == 1


def test_the_image_has_each_architectures_own_libraries(release: Release) -> None:
    found = {}
    with tarfile.open(release.folder / f"dist/gpushare-image-{VERSION}.tar") as archive:
        (index,) = _json(archive, "index.json")["manifests"]
        for described in _blob(archive, index)["manifests"]:
            manifest = _blob(archive, described)
            machines = set[str]()
            for layer in manifest["layers"]:
                with tarfile.open(fileobj=archive.extractfile(_path(layer))) as files:
                    machines |= {
                        ELF_MACHINES[
                            int.from_bytes(files.extractfile(each).read(20)[18:], "little")
                        ]
                        for each in files
                        if re.fullmatch(r"/?opt/gpushare/.*\.so", each.name) and each.isreg()
                    }
            found[_blob(archive, manifest["config"])["architecture"]] = machines
    assert found == {"amd64": {"amd64"}, "arm64": {"arm64"}}


def _path(described: dict[str, Any]) -> str:
    return f"blobs/{described['digest'].replace(':', '/')}"


def _blob(archive: tarfile.TarFile, described: dict[str, Any]) -> dict[str, Any]:
    return _json(archive, _path(described))


def _json(archive: tarfile.TarFile, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.load(archive.extractfile(name))
    return found
