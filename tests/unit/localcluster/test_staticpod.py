"""kube-scheduler as a static pod: what it reads is mounted, and needs nothing else."""

from pathlib import Path

import pytest
import yaml

from localcluster import staticpod
from localcluster.controlplane import write_certificates, write_scheduler_configuration
from localcluster.network import NetworkPlan
from localcluster.state import StateFolder


@pytest.fixture
def written(tmp_path: Path) -> Path:
    state = StateFolder("one", tmp_path)
    state.create()
    write_certificates(state, NetworkPlan("10.200.0.0/16"), ("cp",))
    write_scheduler_configuration(state, None)
    folder = state.node("cp") / "kubernetes"
    (folder / "manifests").mkdir(parents=True)
    staticpod.write(state, "cp", "example/kube-scheduler:v1")
    return folder


def test_every_file_in_its_flags_is_mounted_and_there(written: Path) -> None:
    described = yaml.safe_load((written / "manifests" / "kube-scheduler.yaml").read_text())
    (container,) = described["spec"]["containers"]
    flags = [each.partition("=")[2] for each in container["command"] if "=/" in each]
    mounted = {each["mountPath"] for each in container["volumeMounts"]}
    assert set(flags) == mounted
    assert mounted == {each["hostPath"]["path"] for each in described["spec"]["volumes"]}
    assert all((written / Path(each).relative_to("/etc/kubernetes")).exists() for each in mounted)


def test_its_kubeconfig_names_no_file_that_the_pod_does_not_see(written: Path) -> None:
    kubeconfig = (written / "scheduler.conf").read_text()
    assert "certificate-authority-data" in kubeconfig
    assert str(written.parents[2]) not in kubeconfig
    configuration = yaml.safe_load((written / "kube-scheduler.yaml").read_text())
    assert configuration["clientConnection"]["kubeconfig"] == "/etc/kubernetes/scheduler.conf"


def test_nobody_else_reads_the_key_in_it(written: Path) -> None:
    assert (written / "scheduler.conf").stat().st_mode & 0o077 == 0
