"""NVIDIA's own software on shared nodes is found, with a cure for who installed it."""

from dataclasses import replace

import msgspec
import pytest

from gpusharectl.doctor.api_objects import ClusterPolicy
from gpusharectl.doctor.checks.findings import DoctorFinding, Outcome, examine
from gpusharectl.doctor.command import CHECKS
from gpusharectl.doctor.facts.cluster import Facts, OperatorSettings, Unknown, Workload
from gpusharectl.doctor.facts.seen import SeenPod
from tests.builders import annotated
from tests.unit.gpusharectl.doctor.clusters import (
    labelled,
    node,
    of_daemon_set,
    well,
    with_node,
    with_pods,
    with_status,
)

LACKING = Unknown("you lack the right to list clusterpolicies", lacks_right=True)
DEPLOYED = {"nvidia.com/gpu.deploy.device-plugin": "true"}


def findings(facts: Facts) -> list[DoctorFinding]:
    return [each for result in examine(facts, CHECKS) for each in result.findings]


def outcome(facts: Facts, title: str) -> tuple[Outcome, str]:
    (found,) = [each for each in examine(facts, CHECKS) if title in each.check.title]
    return found.outcome, found.nothing


def operators_plugin(on: str) -> SeenPod:
    labels = {"app": "nvidia-device-plugin-daemonset"}
    return of_daemon_set("nvidia-device-plugin", on, "nvidia-device-plugin", **labels)


def test_the_operators_plugin_on_a_shared_node_is_found_before_it_offers_anything():
    facts = with_pods(operators_plugin("n1"))
    (found,) = findings(facts)
    assert found.kind.name == "WholeCardPlugin"
    assert "pod gpu-operator/nvidia-device-plugin" in found.found
    assert found.fix.startswith(
        "kubectl label node n1 nvidia.com/gpu.deploy.device-plugin=false --overwrite"
    )
    (known,) = findings(replace(facts, operators=(OperatorSettings("policy"),)))
    assert "kubectl patch clusterpolicy policy" in known.fix
    assert known.fix.endswith("/docs/platforms/gpu-operator.md")


def test_a_plugin_that_the_operator_did_not_install_is_not_cured_by_the_operators_label():
    there = of_daemon_set("own", "n1", "nvidia-device-plugin-ctr", namespace="kube-system")
    (found,) = findings(with_pods(there))
    assert found.kind.name == "WholeCardPlugin"
    assert "gpu.deploy" not in found.fix


def test_hamis_shares_are_not_cured_by_removing_nvidias_plugin():
    there = labelled(with_status("n1", {"nvidia.com/gpu": 20}, {}), {"gpu": "on", **DEPLOYED})
    (found,) = findings(with_node(annotated(there, {"hami.io/node-nvidia-register": "[]"})))
    assert found.kind.name == "WholeCardPlugin"
    assert "kubectl label node n1 gpu-, so that HAMi's device plugin leaves" in found.fix
    assert "NVIDIA" not in found.fix
    assert found.fix.endswith("/docs/migrate.md#from-hami")
    assert "gpu-operator" not in found.kind.document
    assert "gpu.deploy" not in found.fix


@pytest.mark.parametrize(
    "pods",
    [
        [operators_plugin("n9")],  # a node that gpushare does not share
        [of_daemon_set("gpu-feature-discovery", "n1", "gpu-feature-discovery-ctr")],
    ],
)
def test_nvidias_software_that_takes_no_shared_gpu_is_left_alone(pods):
    assert findings(with_pods(*pods)) == []


def test_replicas_of_time_slicing_are_named():
    made = labelled(
        with_status("n1", {"nvidia.com/gpu.shared": 16}, {}),
        {"nvidia.com/gpu.sharing-strategy": "time-slicing", **DEPLOYED},
    )
    (found,) = findings(with_node(made))
    assert "16 nvidia.com/gpu.shared, replicas by time-slicing" in found.found
    assert "gpu.deploy.device-plugin=false" in found.fix


def test_a_plugin_that_offers_only_mig_devices_is_allowed():
    made = with_status("n1", {"nvidia.com/mig-1g.5gb": 7}, {})
    assert (
        findings(well(nodes=with_node(made).nodes, pods=with_pods(operators_plugin("n1")).pods))
        == []
    )


@pytest.mark.parametrize("config", ["", "all-disabled"])
def test_a_node_whose_mig_is_off_is_well(config):
    assert findings(with_node(labelled(node("n1"), {"nvidia.com/mig.config": config}))) == []


def settled(operator: OperatorSettings, plugin: Workload) -> list[str]:
    workloads = {**well().workloads, "gpushare-deviceplugin": plugin}
    return [each.kind.name for each in findings(well(operators=(operator,), workloads=workloads))]


BELOW = "/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
UNDER_CLASS = Workload("DaemonSet", 2, runtime_class="nvidia")
BY_DEFAULT = Workload("DaemonSet", 2)
MOUNTED = Workload("DaemonSet", 2, driver_library=BELOW)


@pytest.mark.parametrize(
    ("spec", "plugin", "kinds"),
    [
        ({"cdi": {"enabled": True}}, UNDER_CLASS, []),
        ({"cdi": {"enabled": True}}, BY_DEFAULT, ["PluginWithoutDriver"]),
        ({"cdi": {"enabled": True}, "toolkit": {"enabled": False}}, BY_DEFAULT, []),
        (
            {
                "cdi": {"enabled": True},
                "toolkit": {"env": [{"name": "NVIDIA_RUNTIME_SET_AS_DEFAULT", "value": "true"}]},
            },
            BY_DEFAULT,
            [],
        ),
        ({"cdi": {"enabled": False}}, UNDER_CLASS, ["NvidiaRuntimeIsDefault"]),
        ({"cdi": {"enabled": False}}, BY_DEFAULT, []),
        ({}, BY_DEFAULT, []),
        ({"driver": {"enabled": True}}, MOUNTED, []),
        ({"driver": {"enabled": False}}, MOUNTED, ["DriverRootDiffers"]),
        (
            {"driver": {"enabled": True}, "hostPaths": {"driverInstallDir": "/opt/driver"}},
            MOUNTED,
            ["DriverRootDiffers"],
        ),
        (
            {"driver": {"enabled": True}},
            Workload("DaemonSet", 2, driver_library="/usr/lib/libnvidia-ml.so.1"),
            ["DriverRootDiffers"],
        ),
    ],
)
def test_settings_of_the_operator_that_gpushares_do_not_suit_are_found(spec, plugin, kinds):
    policy = {"metadata": {"name": "cluster-policy"}, "spec": spec}
    operator = msgspec.convert(policy, ClusterPolicy).settings
    assert settled(operator, plugin) == kinds


def test_without_the_runtime_class_the_operators_setting_for_it_is_named():
    operator = OperatorSettings("policy", uses_cdi=True, uses_nri=True)
    (found,) = findings(well(operators=(operator,), runtime_classes=frozenset()))
    assert found.kind.name == "RuntimeClassMissing"
    assert "cdi.nriPluginEnabled=true" in found.found


def test_settings_that_may_not_be_read_matter_only_where_the_operator_is_seen():
    facts = well(operators=LACKING)
    title = "GPU Operator's settings"
    assert outcome(facts, title) == (Outcome.NOTHING, "there is no sign of the GPU Operator")
    seen = with_node(labelled(node("n1"), {"nvidia.com/gpu.deploy.driver": "true"}))
    assert outcome(replace(seen, operators=LACKING), title) == (Outcome.UNCHECKED, "")
