"""The pod and container of a process are found in all forms of control groups."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.usage.cgroup_paths import Owner, bare_id, owner_of, pod_of

UID = "5a3c2f0e-6d8b-4b7e-9c55-0f3f5f6c1a20"
SLICE = UID.replace("-", "_")
STATIC = "3fd1e1bd5b4d7d9a5b6a6f0c2e8f9a01"
BOX = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

FORMS = {
    "v2, systemd, containerd": f"0::/kubepods.slice/kubepods-burstable.slice/"
    f"kubepods-burstable-pod{SLICE}.slice/cri-containerd-{BOX}.scope",
    "v2, systemd, containerd, guaranteed": f"0::/kubepods.slice/kubepods-pod{SLICE}.slice/"
    f"cri-containerd-{BOX}.scope",
    "v2, systemd, CRI-O": f"0::/kubepods.slice/kubepods-besteffort.slice/"
    f"kubepods-besteffort-pod{SLICE}.slice/crio-{BOX}.scope/container",
    "v2, systemd, Docker": f"0::/kubepods.slice/kubepods-pod{SLICE}.slice/docker-{BOX}.scope",
    "v2, cgroupfs, containerd": f"0::/kubepods/burstable/pod{UID}/{BOX}",
    "v2, cgroupfs, CRI-O": f"0::/kubepods/pod{UID}/crio-{BOX}",
    "v2, below a kubelet of kind": f"0::/kubelet.slice/kubelet-kubepods.slice/"
    f"kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{SLICE}.slice/"
    f"cri-containerd-{BOX}.scope",
    "v2, seen from a pod of the same class": f"0::/../../kubepods-burstable-pod{SLICE}.slice/"
    f"cri-containerd-{BOX}.scope",
    "v2, cgroupfs, seen from a pod of the same class": f"0::/../../pod{UID}/{BOX}",
    "v2, a container that has groups of its own": f"0::/kubepods/pod{UID}/{BOX}/system.slice/a",
    "v1, systemd, containerd": f"12:cpuset:/kubepods.slice/kubepods-burstable.slice/"
    f"kubepods-burstable-pod{SLICE}.slice/cri-containerd-{BOX}.scope\n"
    f"1:name=systemd:/kubepods.slice/kubepods-burstable.slice/"
    f"kubepods-burstable-pod{SLICE}.slice/cri-containerd-{BOX}.scope\n0::/",
    "v1, cgroupfs, containerd": f"11:devices:/kubepods/besteffort/pod{UID}/{BOX}\n"
    f"4:cpu,cpuacct:/kubepods/besteffort/pod{UID}/{BOX}",
    "v1, containerd that was not told of systemd": f"10:memory:/system.slice/"
    f"containerd.service/kubepods-burstable-pod{SLICE}.slice:cri-containerd:{BOX}",
    "v1, only in some of the hierarchies": f"13:misc:/\n10:memory:/kubepods/pod{UID}/{BOX}\n0::/",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_pods_process_is_known_by_its_control_group(form: str) -> None:
    assert owner_of(FORMS[form] + "\n") == Owner(UID, BOX)


@pytest.mark.parametrize(
    "path",
    [
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/crio-{BOX}",
        f"/kubepods/burstable/pod{STATIC}/{BOX}",
    ],
)
def test_a_static_pod_has_the_hash_of_its_manifest(path: str) -> None:
    assert owner_of(f"0::{path}") == Owner(STATIC, BOX)


def test_of_a_pod_within_a_pod_it_is_the_outer_one() -> None:
    inner = "11111111-2222-3333-4444-555555555555"
    other = BOX[::-1]
    path = f"0::/kubepods/pod{UID}/{BOX}/kubepods/pod{inner}/{other}"
    assert owner_of(path) == Owner(UID, BOX)


@pytest.mark.parametrize("below", ["", f"/{BOX[:-1]}", f"/{BOX}0", f"/x-{BOX}", f"/a/{BOX}", "/.."])
def test_a_process_of_a_pod_may_be_in_no_container(below: str) -> None:
    assert owner_of(f"0::/kubepods/pod{UID}{below}") == Owner(UID)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "0::/",
        "0::/init.scope",
        "0::/user.slice/user-1000.slice/session-3.scope",
        "0::/system.slice/containerd.service",
        f"0::/system.slice/docker-{BOX}.scope",
        f"0::/machine.slice/libpod-{BOX}.scope",
        "0::/kubepods.slice/kubepods-burstable.slice",
        f"0::/tripod{UID}",
        f"0::/kubepods/pod{UID[:-1]}/{BOX}",
        f"0::/kubepods/pod{UID}0/{BOX}",
        f"0::/home/pod{UID}.txt",
    ],
)
def test_any_other_process_belongs_to_no_pod(content: str) -> None:
    assert owner_of(content) is None


@given(st.text(), st.uuids())
def test_lines_that_mean_nothing_belong_to_no_pod_and_hide_none(content: str, uid) -> None:
    assert owner_of(content) is None
    assert owner_of(f"{content}\n0::/kubepods/pod{uid}/{BOX}") == Owner(str(uid), BOX)


@given(st.uuids(), st.lists(st.sampled_from(["a", "..", "kubepods.slice", "x-y.scope"])))
def test_every_uid_is_found_however_deep_it_lies(uid, above: list[str]) -> None:
    for name in (f"pod{uid}", f"kubepods-pod{str(uid).replace('-', '_')}.slice"):
        assert owner_of("0::/" + "/".join([*above, name, BOX])) == Owner(str(uid), BOX)
        assert pod_of(name) == str(uid)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (f"containerd://{BOX}", BOX),
        (f"cri-o://{BOX}", BOX),
        (f"docker://{BOX}", BOX),
        (BOX, ""),
        (f"containerd://../{BOX}", ""),
        (f"containerd://{BOX}/..", ""),
        ("present", ""),
        ("", ""),
        (None, ""),
    ],
)
def test_only_an_id_in_a_runtimes_form_is_looked_for(written: str | None, expected: str) -> None:
    assert bare_id(written) == expected
