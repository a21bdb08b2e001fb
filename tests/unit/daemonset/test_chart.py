"""The Helm chart renders what kustomize renders, and rejects invalid values."""

import copy
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from extender.settings.configuration import Configuration
from extender.settings.file import parse
from localcluster.tools import tool
from tests.markdown import blocks
from tests.unit.daemonset.kustomizations import BASE, EVERY, PLATFORMS, ROOT, SECOND, own

CHART = ROOT / "daemonset/chart"
DRIVER = "/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"

OF_A_RELEASE = ("app.kubernetes.io/instance", "app.kubernetes.io/version", "helm.sh/chart")

pytestmark = pytest.mark.usefixtures("helm")

# kustomize leaves to the user what Helm does by default.
PLAIN: dict[str, Any] = {
    "certificates": {"source": "existing"},
    "secondScheduler": {"setSchedulerName": "none", "image": {"tag": "v1.34.4"}},
}


def values_of(platform: str) -> dict[str, Any]:
    text = (CHART / f"values/{platform}.yaml").read_text()
    found: dict[str, Any] = yaml.safe_load(text)
    return found


SAME: dict[str, dict[str, Any]] = {
    BASE: {},
    "daemonset/components/autoscaling": {
        "autoscaling": {"enabled": True},
        "extender": {"configuration": {"queue": {"autoscaled": False}}},
    },
    "daemonset/components/avoid-gpu-nodes": {"avoidGpuNodes": True},
    "daemonset/components/before-1.30": {"policies": False},
    "daemonset/components/default-runtime": {"plugin": {"runtimeClassName": ""}},
    "daemonset/components/driver-root": {"plugin": {"driverRoot": DRIVER}},
    "daemonset/components/early-binding": {"plugin": {"binding": "early"}},
    "daemonset/components/framework-limits": {"plugin": {"frameworkLimits": True}},
    "daemonset/components/gates": {"gates": {"enabled": True, "by": "policy"}},
    "daemonset/components/gates-webhook": {
        "gates": {"enabled": True, "by": "webhook"},
        "certificates": {"source": "existing", "authority": "-----BEGIN CERTIFICATE-----\nAA==\n"},
    },
    "daemonset/components/gpu-operator": values_of("gpu-operator"),
    "daemonset/components/inject-cdi": {"plugin": {"inject": "cdi"}},
    "daemonset/components/network-policy": {"networkPolicy": True},
    # kustomize leaves the setting to a file of the user's own.
    "daemonset/components/preemption": {
        "preemption": {"enabled": True},
        "extender": {"configuration": {"preemption": {"enabled": False}}},
    },
    "daemonset/components/process-memory": {"plugin": {"processMemory": True}},
    "daemonset/components/scheduler-name": {"schedulerNames": ["default-scheduler"]},
    "daemonset/components/signed-kubelet": {"plugin": {"signedKubelet": True}},
    "daemonset/components/simulated-gpus": {"plugin": {"simulatedGpus": [24576, 24576]}},
    "daemonset/components/startup-taint": {"plugin": {"startupTaint": True}},
    "daemonset/overlays/migrating": {
        "policies": False,
        "reserved": "none",
        "plugin": {"nodeSelector": {"gpushare": "true", "gpushare.aliyun.com/plugin": "new"}},
    },
    SECOND: {"scheduler": "second"},
    **{folder: values_of(Path(folder).name) for folder in PLATFORMS},
}


def helm(
    command: str, values: dict[str, Any], *flags: str, namespace: str = "gpushare-system"
) -> str:
    """Return what helm prints; raise AssertionError with its error."""
    words = [tool("helm", print), command, *(["gpushare"] if command == "template" else []), CHART]
    done = subprocess.run(
        [*words, "--namespace", namespace, "--values", "-", *flags],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if not line.startswith("level=INFO")]
        raise AssertionError("\n".join(said))
    return done.stdout


def rendered(values: dict[str, Any], *flags: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(helm("template", values, *flags)) if each]


def plainly(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the chart renders without certificates and test, with policies of 1.36."""
    found = rendered(merged(PLAIN, values), "--kube-version", "1.36.0")
    return [each for each in found if "helm.sh/hook" not in each["metadata"].get("annotations", {})]


def comparable(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """Return objects by kind and name, without differences between the two tools.

    kustomize hashes the names of ConfigMaps and renders the Namespace; Helm replaces pods by an
    annotation; labels name the tool and the release. Only Helm knows the authority of a webhook.
    Lists without an order are sorted.
    """
    found = {}
    for each in copy.deepcopy(objects):
        if each["kind"] == "Namespace":
            continue
        labelled = [each["metadata"]]
        if each["kind"] == "ConfigMap":
            each["metadata"]["name"] = unhashed(each["metadata"]["name"])
            each["data"] = {key: read(key, text) for key, text in each["data"].items()}
        for webhook in each.get("webhooks", ()):
            webhook["clientConfig"].pop("caBundle", None)
        if each["kind"] in {"DaemonSet", "Deployment"}:
            template = each["spec"]["template"]
            labelled.append(template["metadata"])
            for key in template["metadata"].pop("annotations", {}):
                assert key.startswith("checksum/")
            order(template["spec"])
        for metadata in labelled:
            assert metadata["labels"].pop("app.kubernetes.io/managed-by") in {"Helm", "kustomize"}
            for key in OF_A_RELEASE:
                metadata["labels"].pop(key, None)
        found[each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]] = each
    return found


def read(file: str, text: str) -> Any:
    """Return what the extender reads in its file, in which defaults may be written or not."""
    return parse(text.encode()) if file == "extender.yaml" else yaml.safe_load(text)


def unhashed(name: str) -> str:
    return re.sub(r"-[a-z0-9]{10}$", "", name)


def order(pod: dict[str, Any]) -> None:
    pod["volumes"].sort(key=lambda each: each["name"])
    for volume in pod["volumes"]:
        if "configMap" in volume:
            volume["configMap"]["name"] = unhashed(volume["configMap"]["name"])
    for container in pod["containers"]:
        container.get("args", []).sort()
        container.get("env", []).sort(key=lambda each: each["name"])
        container["volumeMounts"].sort(key=lambda each: each["mountPath"])


def merged(*values: dict[str, Any]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for each in values:
        for key, value in each.items():
            both = isinstance(value, dict) and key in whole
            whole[key] = {**whole[key], **value} if both else value
    return whole


def test_no_overlay_and_no_component_is_left_out():
    assert set(SAME) == {*EVERY, *PLATFORMS}


@pytest.mark.parametrize("folder", SAME)
def test_the_chart_renders_the_objects_of_an_overlay_or_component(render, folder):
    found, wanted = comparable(plainly(SAME[folder])), comparable(render(folder).all)
    if folder.endswith("scheduler-name"):
        # kustomize leaves the setting to a file of the user's own.
        name = ("ConfigMap", "gpushare-system", "gpushare-extender-configuration")
        del found[name], wanted[name]
    assert found == wanted


@pytest.mark.parametrize("binding", ["early-binding", "inject-cdi"])
def test_the_chart_renders_a_second_scheduler_with_components(render_own, binding):
    names = (
        binding,
        "driver-root",
        "framework-limits",
        "network-policy",
        "process-memory",
        "signed-kubelet",
    )
    wanted = render_own(own(*names, resource=SECOND))
    values = merged(
        {"scheduler": "second"}, *(SAME[f"daemonset/components/{each}"] for each in names)
    )
    assert comparable(plainly(values)) == comparable(wanted.all)


def test_the_migrations_values_are_its_kustomizations(render_own):
    found = [each for each in blocks(ROOT / "docs/migrate.md") if each.language == "yaml"]
    first, values, last = (yaml.safe_load(each.text) for each in found)
    for shown, chart in (
        (first, values),
        (last, {"reserved": "none", "plugin": {"runtimeClassName": ""}}),
    ):
        wanted = render_own(yaml.safe_dump({"kind": "Kustomization", **shown}))
        assert comparable(plainly(chart)) == comparable(wanted.all)


def of_kind(objects: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    (found,) = [
        each for each in objects if each["kind"] == kind and name in ("", each["metadata"]["name"])
    ]
    return found


def test_values_reach_the_extenders_file_and_what_they_leave_out_stays():
    values = {
        "unit": "256MiB",
        "extender": {
            "configuration": {
                "logLevel": "debug",
                "leaderElection": {"leaseSeconds": 9.0},
                "policy": {"node": "spread"},
            }
        },
    }
    text = of_kind(rendered(values), "ConfigMap")["data"]["extender.yaml"]
    found = parse(text.encode())
    assert (found.memory_unit, found.log_level, found.policy.node) == ("256MiB", "debug", "spread")
    shipped = parse((ROOT / "daemonset/base/configuration/extender.yaml").read_bytes())
    assert found.leader_election is not None
    assert shipped.leader_election is not None
    assert found.leader_election.lease_seconds == 9.0
    assert found.leader_election.tls == shipped.leader_election.tls


@pytest.mark.parametrize(
    ("values", "enabled", "delay", "victims"),
    [
        ({}, False, 0, "lower"),
        ({"preemption": {"enabled": True}}, True, 0, "lower"),
        (
            {
                "preemption": {"enabled": True},
                "extender": {
                    "configuration": {"preemption": {"delaySeconds": 60, "victims": "preemptible"}}
                },
            },
            True,
            60,
            "preemptible",
        ),
        (
            {
                "preemption": {"enabled": True},
                "extender": {"configuration": {"preemption": {"enabled": False}}},
            },
            False,
            0,
            "lower",
        ),
    ],
)
def test_preemption_is_off_until_its_value_gives_the_rights_and_sets_it(
    values, enabled, delay, victims
):
    objects = rendered(values)
    found = parse(of_kind(objects, "ConfigMap")["data"]["extender.yaml"].encode()).preemption
    assert (found.enabled, found.delay_seconds, found.victims) == (enabled, delay, victims)
    roles = {each["metadata"]["name"] for each in objects if each["kind"] == "ClusterRole"}
    assert ("gpushare-preemption" in roles) is bool(values)


def test_a_changed_file_replaces_the_extenders_pods():
    def stamp(values: dict[str, Any]) -> object:
        made = of_kind(rendered(values), "DaemonSet", "gpushare-extender")
        return made["spec"]["template"]["metadata"]["annotations"]

    assert stamp({}) == stamp({"plugin": {"logLevel": "debug"}})
    assert stamp({}) != stamp({"extender": {"configuration": {"logLevel": "debug"}}})


def test_values_reach_the_pods():
    values = {
        "image": {
            "repository": "registry.example.com/gpushare",
            "tag": "1",
            "pullPolicy": "Always",
            "pullSecrets": ["mine"],
        },
        "unit": "MiB",
        "reserved": 500,
        "plugin": {
            "runtimeClassName": "other",
            "logLevel": "debug",
            "nodeSelector": {"pool": "gpu"},
            "tolerations": [],
            "resources": {"limits": {"memory": "1Gi"}},
        },
        "extender": {"tolerations": [{"operator": "Exists"}]},
    }
    objects = rendered(values)
    plugin = of_kind(objects, "DaemonSet", "gpushare-deviceplugin")["spec"]["template"]["spec"]
    extender = of_kind(objects, "DaemonSet", "gpushare-extender")["spec"]["template"]["spec"]
    for pod in (plugin, extender):
        assert pod["containers"][0]["image"] == "registry.example.com/gpushare:1"
        assert pod["containers"][0]["imagePullPolicy"] == "Always"
        assert pod["imagePullSecrets"] == [{"name": "mine"}]
    (container,) = plugin["containers"]
    assert {"--memory-unit=MiB", "--reserved=500", "--log-level=debug"} <= set(container["args"])
    assert plugin["runtimeClassName"] == "other"
    assert plugin["nodeSelector"] == {"gpushare": "true", "pool": "gpu"}
    assert plugin["tolerations"] == []
    assert container["resources"]["limits"] == {"memory": "1Gi"}
    assert extender["tolerations"] == [{"operator": "Exists"}]


def test_accounts_that_restore_pods_are_in_the_policys_list():
    accounts = ["system:serviceaccount:velero:velero", "backup@example.com"]
    name = "gpushare-created-with-node"
    for values, wanted in (({}, []), ({"restoreAccounts": accounts}, accounts)):
        (policy,) = [
            each
            for each in rendered(values)
            if each["kind"] == "ValidatingAdmissionPolicy" and each["metadata"]["name"] == name
        ]
        (listed,) = policy["spec"]["variables"]
        assert json.loads(listed["expression"]) == wanted


def test_a_second_scheduler_is_of_the_version_that_was_said():
    values = {
        "scheduler": "second",
        "schedulerNames": ["gpushare-scheduler", "mine"],
        "secondScheduler": {
            "image": {"tag": "v1.31.2"},
            "replicas": 3,
            "nodeSelector": {"pool": "system"},
        },
    }
    objects = rendered(values)
    spec = of_kind(objects, "Deployment")["spec"]
    assert spec["replicas"] == 3
    pod = spec["template"]["spec"]
    assert pod["nodeSelector"] == {"pool": "system"}
    assert pod["containers"][0]["image"] == "registry.k8s.io/kube-scheduler:v1.31.2"
    policy = of_kind(objects, "ValidatingAdmissionPolicy", "gpushare-scheduler-name")
    assert policy["spec"]["variables"][0]["expression"] == '["gpushare-scheduler","mine"]'


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"units": "GiB"}, "additional properties 'units' not allowed"),
        ({"unit": "GB"}, "at '/unit': 'GB' does not match"),
        ({"reserved": "some"}, "at '/reserved'"),
        ({"reserve": "512"}, "at '/reserve'"),
        ({"reserve": 512}, "at '/reserve'"),
        ({"memoryLimit": True}, "at '/memoryLimit': value must be one of 'auto', 'off', 'require'"),
        ({"certificates": {"source": "self"}}, "at '/certificates/source': value must be one of"),
        (
            {"certificates": {"issuer": {"kind": "ClusterIssuer"}}},
            "at '/certificates/issuer': missing property 'name'",
        ),
        (
            {"secondScheduler": {"setSchedulerName": "always"}},
            "at '/secondScheduler/setSchedulerName': value must be one of 'auto', 'policy', 'webho",
        ),
        ({"scheduler": "third"}, "at '/scheduler': value must be one of 'control-plane', 'second'"),
        ({"plugin": {"binding": "soon"}}, "at '/plugin/binding': value must be one of"),
        ({"plugin": {"inject": "yes"}}, "at '/plugin/inject': value must be one of"),
        ({"plugin": {"driverRoot": "/run/nvidia"}}, "at '/plugin/driverRoot'"),
        ({"extender": {"configuration": {"polcy": {}}}}, "additional properties 'polcy'"),
        ({"extender": {"configuration": {"memoryUnit": "MiB"}}}, "additional properties 'memory"),
        (
            {"extender": {"configuration": {"policy": {"candidates": "many"}}}},
            "at '/extender/configuration/policy/candidates': got string, want integer",
        ),
        (
            {"plugin": {"startupTaint": True}, "policies": False},
            "plugin.startupTaint needs the policy that restricts the plugin to one taint",
        ),
        (
            {"plugin": {"inject": "cdi", "binding": "early"}},
            "plugin.inject is cdi, which needs late binding, but plugin.binding is early: choose",
        ),
        (
            {"scheduler": "second", "schedulerNames": ["mine", "default-scheduler"]},
            "schedulerNames (mine, default-scheduler) has no gpushare-scheduler",
        ),
        (
            {
                "reading": {"enabled": True},
                "extender": {"configuration": {"listen": {"reading": {"port": 8443}}}},
            },
            "extender.configuration.listen.reading.port is 8443, but Service and PodMonitor use",
        ),
        (
            {
                "scheduler": "second",
                "secondScheduler": {"setSchedulerName": "webhook"},
                "extender": {"configuration": {"listen": {"admission": {"port": 8443}}}},
            },
            "extender.configuration.listen.admission.port is 8443, but the webhook's Service uses",
        ),
        ({"gates": {"by": "magic"}}, "at '/gates/by': value must be one of 'auto', 'policy', 'we"),
        (
            {"restoreAccounts": ['a"b']},
            "at '/restoreAccounts/0': 'a\"b' does not match pattern",
        ),
        (
            {"restoreAccounts": ["velero"], "policies": False},
            "restoreAccounts is the list of a policy, but policies is false",
        ),
        (
            {"extender": {"configuration": {"preemption": {"victims": "all"}}}},
            "at '/extender/configuration/preemption/victims': value must be one of 'lower', 'preem",
        ),
        (
            {"extender": {"configuration": {"preemption": {"enabled": True}}}},
            "extender.configuration.preemption.enabled is true, but only preemption.enabled gives",
        ),
        (
            {"extender": {"configuration": {"queue": {"autoscaled": True}}}},
            "extender.configuration.queue.autoscaled is true, but only autoscaling.enabled gives",
        ),
        (
            {"autoscaling": {"enabled": True}, "policies": False},
            "autoscaling.enabled needs the policy that restricts the extender to placeholders",
        ),
        ({"certificates": {"days": 89}}, "at '/certificates/days': minimum: got 89, want 90"),
    ],
)
def test_values_that_cannot_be_used_are_refused_with_their_place(values, said):
    with pytest.raises(AssertionError, match=re.escape(said)):
        helm("template", values)


def test_another_namespace_is_refused_with_the_flag_to_add():
    with pytest.raises(AssertionError, match="add --namespace gpushare-system"):
        helm("template", {}, namespace="default")


def test_policies_are_refused_where_kubernetes_has_none():
    older = ("--kube-version", "1.29.4")
    with pytest.raises(AssertionError, match=re.escape("Kubernetes v1.29.4 has no Validating")):
        helm("template", {}, *older)
    assert "ValidatingAdmission" not in helm("template", {"policies": False}, *older)


def test_only_named_readers_and_the_second_scheduler_reach_the_plugins_metrics():
    def readers(*peers: dict[str, Any]) -> list[dict[str, Any]]:
        objects = rendered({"networkPolicy": True, "pluginMetricsFrom": list(peers)})
        (policy,) = [
            each["spec"]
            for each in objects
            if each["kind"] == "NetworkPolicy"
            and each["metadata"]["name"] == "gpushare-deviceplugin"
        ]
        (rule,) = policy["ingress"]
        assert rule["ports"] == [{"port": 29767, "protocol": "TCP"}]
        return rule["from"]

    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "m"}}}
    address = {"ipBlock": {"cidr": "10.0.0.5/32"}}
    extender = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "gpushare-scheduler"}}}
    assert readers() == []  # everyone
    assert readers(prometheus, address) == [prometheus, address, extender]
    with pytest.raises(AssertionError, match="networkPolicy is false: set it to true"):
        helm("template", {"pluginMetricsFrom": [address]})


def test_helm_finds_nothing_to_say_against_the_chart():
    for values in ({}, {"scheduler": "second", "networkPolicy": True}):
        said = helm("lint", values)
        assert "[WARNING]" not in said
        assert "1 chart(s) linted, 0 chart(s) failed" in said


def plain(schema: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    """Return the extender's schema for values: nothing required, no references."""
    if "$ref" in schema:
        return plain(whole["$defs"][schema["$ref"].rsplit("/", 1)[1]], whole)
    if "anyOf" in schema:
        (given,) = [each for each in schema["anyOf"] if each.get("type") != "null"]
        return plain(given, whole)
    found = {key: schema[key] for key in ("type", "enum", "additionalProperties") if key in schema}
    if "properties" in schema:
        found["properties"] = {k: plain(v, whole) for k, v in schema["properties"].items()}
    if isinstance(schema.get("items"), dict):
        found["items"] = plain(schema["items"], whole)
    return found


def test_the_schema_knows_the_keys_of_the_extenders_file():
    whole = msgspec.json.schema(Configuration)
    wanted = plain(whole, whole)
    # Two are set elsewhere; a pod has its account.
    for key in ("memoryUnit", "schedulerNames", "kubeconfig"):
        del wanted["properties"][key]
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["properties"]["extender"]["properties"]["configuration"] == wanted


def test_the_schema_has_a_place_for_every_value_and_no_other():
    def keys(values: Any, schema: dict[str, Any], place: str) -> None:
        known = schema.get("properties")
        if not isinstance(values, dict) or known is None or place.endswith("configuration"):
            return
        given = {key for key in known if key not in {"global", "requests", "limits"}}
        given -= {"name", "kind", "group"}  # of an issuer
        assert given <= set(values) or place.endswith(("resources", "seLinuxOptions")), place
        for key, value in values.items():
            assert key in known, f"{place}/{key}"
            keys(value, known[key], f"{place}/{key}")

    schema = json.loads((CHART / "values.schema.json").read_text())
    keys(yaml.safe_load((CHART / "values.yaml").read_text()), schema, "")


def test_the_chart_is_of_the_version_that_is_built():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    (version,) = re.findall(
        r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )
    assert chart["version"] == chart["appVersion"] == version
