"""The configuration of the components."""

import json
import socket
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcluster.controlplane import (
    api_server_arguments,
    check_ports,
    controller_manager_arguments,
    scheduler_arguments,
    write_scheduler_configuration,
)
from localcluster.errors import HostError, UsageError
from localcluster.namespaces import mount_script
from localcluster.network import NetworkPlan
from localcluster.nodefiles import (
    containerd_config,
    kubelet_config,
    nvidia_runtime_spec,
    snapshotter_for,
)
from localcluster.state import StateFolder
from localcluster.versions import DEFAULT, NATIVE_GANGS, Features, Version

PLUGINS = {
    "containerd-2": "io.containerd.cri.v1.runtime",
    "containerd-1.7": "io.containerd.grpc.v1.cri",
}
MOUNTINFO = """\
1 0 8:1 / / rw - overlay overlay rw
2 1 8:2 / /data rw - ext4 /dev/sda rw
"""


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    found = StateFolder("one", tmp_path)
    found.create()
    return found


def config_of(**options: Any) -> dict[str, Any]:
    options = {"snapshotter": "overlayfs", "cdi": True, **options}
    return tomllib.loads(containerd_config(binaries=Path("/b"), folder=Path("/n"), **options))


@pytest.mark.parametrize("cdi", [True, False])
@pytest.mark.parametrize("version", PLUGINS)
def test_containerd_reads_cdi_specs_from_both_folders_if_told_to(version: str, cdi: bool) -> None:
    runtime = config_of(version=version, cdi=cdi)["plugins"][PLUGINS[version]]
    assert runtime["enable_cdi"] is cdi
    assert runtime["cdi_spec_dirs"] == ["/etc/cdi", "/var/run/cdi"]


def test_containerd_1_has_the_keys_of_its_own_version() -> None:
    found = config_of(version="containerd-1.7", snapshotter="native")
    assert found["version"] == 2
    runtime = found["plugins"][PLUGINS["containerd-1.7"]]
    assert runtime["containerd"]["snapshotter"] == "native"
    assert runtime["cni"] == {"bin_dir": "/b", "conf_dir": "/n/cni.d"}
    assert not [each for each in found["plugins"] if each.startswith("io.containerd.cri.v1.")]


def test_the_kubelet_asks_the_api_server_who_may_read_it(state: StateFolder) -> None:
    document = yaml.safe_load(
        kubelet_config(state, NetworkPlan("10.200.0.0/16"), cgroup="/localcluster-one/n1")
    )
    assert document["cgroupRoot"] == "/localcluster-one/n1"
    assert document["authentication"]["anonymous"] == {"enabled": False}
    assert document["authentication"]["webhook"] == {"enabled": True}
    assert document["authorization"] == {"mode": "Webhook"}


def test_nvidias_runtimes_show_the_cards_state_and_leave_the_pods_security_to_the_pod() -> None:
    default = {
        "process": {"apparmorProfile": "x", "rlimits": [1], "noNewPrivileges": True},
        "linux": {"seccomp": {}, "namespaces": []},
        "mounts": [{"destination": "/proc"}],
    }
    found = json.loads(nvidia_runtime_spec(json.dumps(default), cards=Path("/cards")))
    assert set(found["process"]) == {"noNewPrivileges"}
    assert set(found["linux"]) == {"namespaces"}
    proc, cards = found["mounts"]
    assert proc == {"destination": "/proc"}
    assert (cards["source"], cards["destination"]) == ("/cards", "/run/nvml-standin")
    assert "ro" in cards["options"]


def test_containerd_knows_nvidias_runtimes_and_which_one_is_the_default() -> None:
    handlers = {"nvidia": Path("/t/nvidia-container-runtime")}
    found = config_of(handlers=handlers, default_handler="nvidia")
    containerd = found["plugins"][PLUGINS["containerd-2"]]["containerd"]
    assert containerd["default_runtime_name"] == "nvidia"
    programs = {
        name: each["options"]["BinaryName"] for name, each in containerd["runtimes"].items()
    }
    assert programs == {"runc": "/b/runc", "nvidia": "/t/nvidia-container-runtime"}


def test_only_a_control_plane_node_starts_static_pods(state: StateFolder) -> None:
    plan = NetworkPlan("10.200.0.0/16")
    texts = [kubelet_config(state, plan, cgroup="/c", static_pods=each) for each in (True, False)]
    paths = [yaml.safe_load(each).get("staticPodPath") for each in texts]
    assert paths == ["/etc/kubernetes/manifests", None]


@pytest.mark.parametrize(("folder", "wanted"), [("/data/x", "overlayfs"), ("/database", "native")])
def test_overlays_are_not_stacked_on_an_overlay(folder: str, wanted: str) -> None:
    assert snapshotter_for(Path(folder), MOUNTINFO) == wanted


def test_a_node_gets_its_own_folders_and_leaves_the_hosts_settings(state: StateFolder) -> None:
    script = mount_script(state, "n1")
    for place in ("/run", "/etc/cdi", "/var/log", "/var/lib/kubelet"):
        assert any(
            line.startswith("own ") and line.endswith(f" {place}") for line in script.splitlines()
        )
    assert "mount -n --bind" in script
    assert ">/proc" not in script


def test_the_callers_scheduler_configuration_is_kept(state: StateFolder) -> None:
    given = state.path / "given.yaml"
    extender = {"urlPrefix": "http://127.0.0.1:29766/x", "bindVerb": "bind"}
    kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    document = {**kind, "clientConnection": {"qps": 77}, "extenders": [extender]}
    given.write_text(yaml.safe_dump(document))
    write_scheduler_configuration(state, given)
    written = yaml.safe_load((state.config / "kube-scheduler.yaml").read_text())
    kubeconfig = str(state.kubeconfigs / "kube-scheduler.kubeconfig")
    assert written.pop("clientConnection") == {"qps": 77, "kubeconfig": kubeconfig}
    assert written.pop("leaderElection") == {"leaderElect": False}
    assert written == {**kind, "extenders": [extender]}


@pytest.mark.parametrize("text", ["[]", "kind: Pod", "a: [", ""])
def test_what_is_no_scheduler_configuration_is_refused(state: StateFolder, text: str) -> None:
    given = state.path / "given.yaml"
    given.write_text(text)
    with pytest.raises(UsageError, match=r"given\.yaml"):
        write_scheduler_configuration(state, given)


def test_every_component_gets_the_feature_gates_and_the_api_server_the_apis(
    state: StateFolder,
) -> None:
    plan = NetworkPlan("10.200.0.0/16")
    api_server = api_server_arguments(state, plan, DEFAULT, NATIVE_GANGS)
    others = [controller_manager_arguments, scheduler_arguments]
    for words in (api_server, *(each(state, plan, NATIVE_GANGS) for each in others)):
        assert "--feature-gates=GenericWorkload=true" in words
    assert "--runtime-config=scheduling.k8s.io/v1beta1=true" in api_server


def test_the_api_server_of_a_version_that_has_it_off_binds_tokens_to_nodes(
    state: StateFolder,
) -> None:
    plan = NetworkPlan("10.200.0.0/16")
    given = Features({"Other": False})
    words = {
        minor: api_server_arguments(state, plan, Version(minor), given) for minor in (27, 30, 34)
    }
    gates = [
        [each for each in found if each.startswith("--feature-gates")] for found in words.values()
    ]
    assert gates == [
        ["--feature-gates=Other=false"],
        ["--feature-gates=ServiceAccountTokenNodeBinding=true,Other=false"],
        ["--feature-gates=Other=false"],
    ]


@pytest.mark.parametrize(("minor", "wanted"), [(30, None), (31, False)])
def test_a_kubelet_that_would_refuse_cgroup_v1_is_told_not_to(
    state: StateFolder, minor: int, wanted: bool | None
) -> None:
    text = kubelet_config(state, NetworkPlan("10.200.0.0/16"), cgroup="/c", version=Version(minor))
    assert yaml.safe_load(text).get("failCgroupV1") is wanted


def test_a_port_that_is_taken_is_named() -> None:
    plan = NetworkPlan("127.77.0.0/16")
    check_ports(plan)
    with socket.create_server((plan.host, 10259)), pytest.raises(HostError, match=r"\[10259\]"):
        check_ports(plan)
