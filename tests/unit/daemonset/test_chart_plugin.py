"""Each flag of the plugin, each path of a node, and the namespace can be set from Helm."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deviceplugin import settings
from tests.unit.daemonset.test_chart import helm, of_kind, rendered
from tests.unit.daemonset.test_chart_install import notes

pytestmark = pytest.mark.usefixtures("helm")

# A value, and the flags that it sets.
VALUES: list[tuple[dict[str, Any], dict[str, str | bool]]] = [
    ({"unit": "MiB"}, {"--memory-unit": "MiB"}),
    ({"reserved": 500}, {"--reserved": "500"}),
    ({"reserve": "3%"}, {"--reserve": "3%"}),
    ({"reserve": 0}, {"--reserve": "0"}),
    ({"memoryLimit": "require"}, {"--memory-limit": "require"}),
    ({"memoryLimit": False}, {"--memory-limit": "off"}),  # how YAML reads off without quotes
    ({"plugin": {"binding": "early"}}, {"--binding": "early"}),
    ({"plugin": {"inject": "runtime"}}, {"--inject": "runtime"}),
    (
        {"plugin": {"runtimeClasses": ["mine"]}},
        {"--runtime-classes": "nvidia,nvidia-cdi,nvidia-legacy,mine"},
    ),
    ({"plugin": {"simulatedGpus": [1024, 2048]}}, {"--simulated-gpus": "1024,2048"}),
    ({"plugin": {"processMemory": True}}, {"--process-memory": True}),
    ({"plugin": {"frameworkLimits": True}}, {"--framework-limits": True}),
    ({"plugin": {"signedKubelet": True}}, {"--kubelet-tls": "ca"}),
    ({"plugin": {"startupTaint": True}}, {"--startup-taint": True}),
    ({"plugin": {"logLevel": "debug"}}, {"--log-level": "debug"}),
    ({"plugin": {"paths": {"devicePlugins": "/k/plugins"}}}, {"--device-plugin-dir": "/k/plugins"}),
    ({"plugin": {"paths": {"cdi": "/var/cdi"}}}, {"--cdi-dir": "/var/cdi"}),
    ({"plugin": {"paths": {"nvidiaCdi": ["/a", "/b"]}}}, {"--nvidia-cdi-dirs": "/a,/b"}),
    ({"plugin": {"paths": {"state": "/data/gpus"}}}, {"--state-dir": "/data/gpus"}),
    ({"plugin": {"paths": {"cgroup": "/opt/cgroup"}}}, {"--cgroup-dir": "/opt/cgroup"}),
    (
        {"plugin": {"paths": {"kubeletCertificate": "/k/kubelet.crt"}}},
        {"--kubelet-certificate": "/k/kubelet.crt"},
    ),
]
BY_VALUE = {flag for _, flags in VALUES for flag in flags}
# The plugin would end; the port is what probes, NetworkPolicy and live page use.
NEVER = {"--clean", "--http-port"}
FOLDERS = ("device_plugin_dir", "cdi_dir", "state_dir")


def pod(values: dict[str, Any]) -> dict[str, Any]:
    found = of_kind(rendered(values), "DaemonSet", "gpushare-deviceplugin")
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


def arguments(values: dict[str, Any]) -> list[str]:
    (container,) = pod(values)["containers"]
    return list(container["args"])


def flags(capsys: pytest.CaptureFixture[str]) -> set[str]:
    """Return the flags that the plugin's help shows."""
    with pytest.raises(SystemExit):
        settings.read(["--help"], {})
    text = capsys.readouterr().out
    return set(re.findall(r"^  (--[a-z-]+)", text, re.MULTILINE)) - {"--help", "--version"}


@pytest.mark.parametrize(("values", "wanted"), VALUES, ids=lambda each: next(iter(each)))
def test_a_value_of_the_chart_sets_its_flag(values, wanted):
    found = arguments(values)
    settings.read(found, {"NODE_NAME": "n"})
    for flag, value in wanted.items():
        assert (flag if value is True else f"{flag}={value}") in found


def test_every_flag_of_the_plugin_can_be_set_from_helm(capsys):
    there = flags(capsys)
    assert there > BY_VALUE | NEVER
    extra = [f"{flag}=x" for flag in sorted(there - BY_VALUE - NEVER)]
    assert arguments({"plugin": {"extraArgs": extra}})[-len(extra) :] == extra


@pytest.mark.parametrize("flag", sorted(BY_VALUE | NEVER))
def test_a_flag_that_has_a_value_or_is_no_setting_is_refused_among_the_others(flag):
    with pytest.raises(AssertionError, match=f"plugin.extraArgs has {flag}"):
        helm("template", {"plugin": {"extraArgs": [f"{flag}=1"]}})


@pytest.mark.parametrize(
    ("plugin", "said"),
    [
        ({"extraArgs": ["recover-after=1"]}, "at '/plugin/extraArgs/0'"),
        ({"extraArgs": ["--recover-after", "1"]}, "at '/plugin/extraArgs/1'"),
        ({"paths": {"cdi": "var/cdi"}}, "at '/plugin/paths/cdi'"),
        ({"paths": {"cdi": "/var/../etc"}}, "at '/plugin/paths/cdi'"),
        ({"paths": {"cdi": "/var/cdi/"}}, "at '/plugin/paths/cdi'"),
        ({"paths": {"nvidiaCdi": ["/a,/b"]}}, "at '/plugin/paths/nvidiaCdi/0'"),
        ({"seLinuxOptions": {"typ": "spc_t"}}, "additional properties 'typ' not allowed"),
    ],
)
def test_values_of_the_plugin_that_cannot_be_used_are_refused(plugin, said):
    with pytest.raises(AssertionError, match=re.escape(said)):
        helm("template", {"plugin": plugin})


OTHERS = {
    "devicePlugins": "/opt/kubelet/device-plugins",
    "cdi": "/var/cdi/dynamic",
    "nvidiaCdi": ["/var/cdi/static", "/var/cdi/dynamic", "/run/cdi"],
    "state": "/data/gpushare",
    "cgroup": "/opt/cgroup",
    "kubeletCertificate": "/opt/kubelet/pki/kubelet.crt",
}


@pytest.mark.parametrize(
    "plugin",
    [
        {},
        {"signedKubelet": True},
        {"paths": OTHERS},
        {"paths": OTHERS, "signedKubelet": True},
        {"paths": {"nvidiaCdi": ["/var/run/cdi"]}},
    ],
)
def test_every_path_that_the_plugin_uses_is_mounted_from_the_same_place(plugin):
    spec = pod({"plugin": plugin})
    (container,) = spec["containers"]
    found = settings.read(container["args"], {"NODE_NAME": "n"})
    hosts = {each["name"]: each["hostPath"]["path"] for each in spec["volumes"]}
    mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
    assert {hosts[each["name"]] for each in mounts.values()} == set(mounts)
    writable = {str(getattr(found, name)) for name in FOLDERS}
    assert {path for path, each in mounts.items() if not each.get("readOnly")} == writable
    read = {str(each) for each in (found.cgroup_dir, *found.nvidia_cdi_dirs)}
    if str(found.kubelet_certificate) != "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt":
        read.add(str(found.kubelet_certificate))
    assert set(mounts) == writable | read


def test_a_folder_that_cannot_be_made_need_not_be_mounted():
    spec = pod({"plugin": {"paths": {"nvidiaCdi": ["/var/run/cdi"]}}})
    assert "/etc/cdi" not in json.dumps(spec)


def test_selinux_options_are_the_pods():
    spec = pod({"plugin": {"seLinuxOptions": {"type": "spc_t"}}})
    assert spec["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}


NAMESPACE = {"labels": {"team": "ml"}, "annotations": {"openshift.io/node-selector": ""}}


def test_the_chart_can_have_the_namespace_with_labels_and_annotations():
    found = of_kind(rendered({"namespace": {"create": True, **NAMESPACE}}), "Namespace")
    metadata = found["metadata"]
    assert metadata["name"] == "gpushare-system"
    assert metadata["labels"]["team"] == "ml"
    assert metadata["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
    assert metadata["annotations"] == {
        "openshift.io/node-selector": "",
        "helm.sh/resource-policy": "keep",  # Helm's record of the release is in it
    }
    assert "Namespace" not in {each["kind"] for each in rendered({"namespace": NAMESPACE})}


def test_the_notes_say_how_to_label_a_namespace_that_helm_does_not_own(tmp_path: Path):
    command = "kubectl label namespace gpushare-system --overwrite"
    level = "pod-security.kubernetes.io/enforce='privileged'"
    found = notes(tmp_path / "default")
    assert f"{command} {level}\n" in found
    assert "kubectl annotate" not in found
    wanted = notes(tmp_path / "own", values=yaml.safe_dump({"namespace": NAMESPACE}))
    assert f"{command} {level} team='ml'" in wanted
    annotate = "kubectl annotate namespace gpushare-system --overwrite"
    assert f"{annotate} openshift.io/node-selector=''" in wanted
    made = {"namespace": {"create": True, **NAMESPACE}}
    assert "namespace gpushare-system" not in notes(tmp_path / "made", values=yaml.safe_dump(made))


ADDED = [
    {"key": "pool", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"},
    {"key": "nvidia.com/gpu"},
]


@pytest.mark.parametrize(
    ("own", "wanted"),
    [
        ({}, [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]),
        ({"podTolerations": ADDED}, ADDED),
        ({"podTolerations": []}, []),
    ],
)
def test_policy_and_webhook_add_the_same_tolerations_as_the_test_has(own, wanted):
    def second(by: str) -> list[dict[str, Any]]:
        values = {"scheduler": "second", "secondScheduler": {"setSchedulerName": by, **own}}
        return rendered(values, "--kube-version", "1.36.0")

    objects = second("policy")
    spec = of_kind(objects, "MutatingAdmissionPolicy", "gpushare-scheduler-name")["spec"]
    variables = {each["name"]: each["expression"] for each in spec.get("variables", ())}
    added = json.loads(variables.get("added", "[]"))
    assert len(spec["mutations"]) == (2 if wanted else 1)
    full = [{"operator": "Exists", "value": "", "effect": "", **each} for each in wanted]
    assert added == full
    for found in (objects, second("webhook")):
        (test,) = [each for each in found if each["kind"] == "Pod"]
        assert test["spec"].get("tolerations", []) == wanted
    file = of_kind(second("webhook"), "ConfigMap", "gpushare-extender-configuration")["data"]
    admission = yaml.safe_load(file["extender.yaml"])["listen"]["admission"]
    assert admission["tolerations"] == wanted


NONE = {"scheduler": "second", "secondScheduler": {"setSchedulerName": "none"}}


@pytest.mark.parametrize("values", [{}, NONE])
def test_helm_tests_pod_tolerates_nothing_where_nothing_adds_it_to_the_users_pods(values):
    (test,) = [each for each in rendered(values) if each["kind"] == "Pod"]
    assert "tolerations" not in test["spec"]


def test_the_extenders_file_is_no_second_place_for_tolerations():
    own = {"listen": {"admission": {"tolerations": []}}}
    with pytest.raises(AssertionError, match=re.escape("set secondScheduler.podTolerations")):
        helm("template", {"extender": {"configuration": own}})
