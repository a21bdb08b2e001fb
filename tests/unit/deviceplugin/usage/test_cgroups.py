"""The cgroup of a container is found by its pod and ID, and users' own cgroups are never listed."""

import os
from pathlib import Path

import pytest

from deviceplugin.usage.cgroups import Cgroups

UID = "5a3c2f0e-6d8b-4b7e-9c55-0f3f5f6c1a20"
SLICE = UID.replace("-", "_")
OTHER = "11111111-6d8b-4b7e-9c55-0f3f5f6c1a20"
STATIC = "3fd1e1bd5b4d7d9a5b6a6f0c2e8f9a01"
BOX = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
BURSTABLE = f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice"

FORMS = {
    "cgroupfs, containerd": f"kubepods/burstable/pod{UID}/{BOX}",
    "cgroupfs, containerd, guaranteed": f"kubepods/pod{UID}/{BOX}",
    "cgroupfs, CRI-O": f"kubepods/besteffort/pod{UID}/crio-{BOX}",
    "cgroupfs, a cgroup root": f"a/b/kubepods/burstable/pod{UID}/{BOX}",
    "systemd, containerd": f"{BURSTABLE}/cri-containerd-{BOX}.scope",
    "systemd, CRI-O": f"{BURSTABLE}/crio-{BOX}.scope",
    "systemd, Docker": f"{BURSTABLE}/docker-{BOX}.scope",
    "systemd, below a kubelet of kind": f"kubelet.slice/kubelet-kubepods.slice/"
    f"kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{SLICE}.slice/"
    f"cri-containerd-{BOX}.scope",
}


def made(root: Path, path: str) -> Path:
    (root / path).mkdir(parents=True)
    return root / path


@pytest.mark.parametrize("form", FORMS)
def test_a_containers_cgroup_is_found_in_all_layouts(tmp_path: Path, form: str) -> None:
    own = made(tmp_path, FORMS[form])
    made(tmp_path, "system.slice/containerd.service")
    assert Cgroups(tmp_path).find({BOX: UID}) == {BOX: [own]}


@pytest.mark.parametrize("form", FORMS)
def test_the_cgroup_that_crun_makes_in_it_comes_second(tmp_path: Path, form: str) -> None:
    processes = made(tmp_path, f"{FORMS[form]}/container")
    assert Cgroups(tmp_path).find({BOX: UID}) == {BOX: [processes.parent, processes]}


def test_a_static_pod_has_the_hash_of_its_manifest(tmp_path: Path) -> None:
    own = made(tmp_path, f"kubepods/burstable/pod{STATIC}/{BOX}")
    assert Cgroups(tmp_path).find({BOX: STATIC}) == {BOX: [own]}


def test_the_id_of_another_pods_container_finds_nothing(tmp_path: Path) -> None:
    made(tmp_path, f"kubepods/pod{UID}/{BOX}")
    made(tmp_path, f"kubepods/pod{OTHER}")
    assert Cgroups(tmp_path).find({BOX: OTHER}) == {}


def test_cgroups_that_a_user_has_made_stand_for_no_container(tmp_path: Path) -> None:
    own = made(tmp_path, f"kubepods/pod{UID}/{BOX}")
    made(own, f"pod{OTHER}/{BOX[::-1]}")
    assert Cgroups(tmp_path).find({BOX: UID, BOX[::-1]: OTHER}) == {BOX: [own]}


def test_no_cgroup_of_a_user_is_listed(tmp_path: Path, monkeypatch) -> None:
    own = made(tmp_path, f"{BURSTABLE}/cri-containerd-{BOX}.scope")
    made(own, "a/b")
    listed = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(str(path)) or scandir(path))
    Cgroups(tmp_path).find({BOX: UID, BOX[::-1]: OTHER})
    assert listed
    assert not [each for each in listed if SLICE in each]


def test_pods_that_start_are_found_and_those_that_are_gone_are_not(tmp_path: Path) -> None:
    groups = Cgroups(tmp_path)
    first = made(tmp_path, f"kubepods/pod{UID}/{BOX}")
    assert groups.find({BOX: UID}) == {BOX: [first]}
    second = made(tmp_path, f"kubepods/pod{OTHER}/{BOX}")
    assert groups.find({BOX: OTHER}) == {BOX: [second]}
    first.rmdir()
    assert groups.find({BOX: UID}) == {}
    first.parent.rmdir()
    assert groups.find({BOX: UID}) == {}
    moved = made(tmp_path, f"kubepods/burstable/pod{UID}/{BOX}")
    assert groups.find({BOX: UID}) == {BOX: [moved]}


def test_it_is_known_whether_the_cgroup_of_any_pod_is_visible(tmp_path: Path) -> None:
    groups = Cgroups(tmp_path)
    made(tmp_path, "system.slice/kubelet.service")
    assert not groups.sees_pods()
    assert not Cgroups(tmp_path / "missing").sees_pods()
    made(tmp_path, f"kubepods/pod{UID}")
    assert groups.sees_pods()
