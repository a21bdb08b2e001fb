"""The manifests agree with the programs and the contract."""

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

import deviceplugin.settings
from deviceplugin.lifecycle.departure import LEAVE_SECONDS
from extender import probe
from extender.__main__ import parse as parse_extender
from extender.binding.timing import ANSWER_SECONDS, READ_SECONDS, WRITE_SECONDS
from extender.decisions.autoscaling.body import IMAGE, PRIORITY_CLASS
from extender.leadership import election as leadership
from extender.routes import Routes
from extender.server.paths import GATING
from extender.settings.configuration import Configuration
from extender.settings.file import parse as parse_configuration
from gpushare.annotations.pod_annotations import decision_annotations, request_of
from gpushare.cards.reserve import NO_RESERVE
from gpushare.contract import (
    ANNOTATION_EVICTING,
    ANNOTATION_GANG,
    ANNOTATION_POKE,
    ANNOTATION_SLOT,
    CDI_ANNOTATIONS,
    CDI_OF_CARDS,
    CONDITION_CARD_USABLE,
    ENV_VISIBLE_DEVICES,
    EXTENDER_PORT,
    EXTENDER_PREFIX,
    GATE_ADMISSION,
    LABEL_AVOID_GPU_NODES,
    LABEL_GANG,
    LABEL_KUEUE_GROUP,
    LABEL_NODE,
    LABEL_PLACEHOLDER,
    LABEL_POD_GROUP,
    LABEL_QUEUE,
    NO_CARD,
    RESOURCE_COUNT,
    RESOURCE_MEMORY,
    TAINT_NOT_READY,
)
from gpushare.http_server.listeners import STOP_SECONDS
from gpushare.kube.lease import Timing
from gpushare.objects.model import Pod
from gpushare.placement.rank import Policies
from gpushare.process.flags import parse_unit
from gpusharectl.certificates import files as certificates
from gpusharectl.manifests.yaml_lines import read
from gpusharectl.simulate.run import Run
from gpusharectl.simulate.scenario import build
from tests import builders
from tests.markdown import blocks
from tests.rights import documented, writes
from tests.unit.daemonset.kustomizations import (
    BASE,
    COMPONENTS,
    EVERY,
    ROOT,
    SECOND,
    own,
    unlabelled,
)
from tests.unit.extender.scripted import Bench

PLUGIN, EXTENDER = "gpushare-deviceplugin", "gpushare-extender"
NAMESPACE = "gpushare-system"
POLICY, OWN_NODE = "ValidatingAdmissionPolicy", "gpushare-deviceplugin-own-node"

every_rendering = pytest.mark.parametrize("folder", EVERY)


def plugin_settings(objects) -> deviceplugin.settings.Settings:
    container = objects.container("deviceplugin")
    env = {each["name"]: each.get("value", "from-the-node") for each in container["env"]}
    return deviceplugin.settings.read(container["args"], env)


def extender_settings(objects) -> Configuration:
    """Return the configuration that the extender reads from its volume."""
    container = objects.container("extender")
    path = parse_extender(container["args"])
    (mount,) = (m for m in container["volumeMounts"] if m["mountPath"] == str(path.parent))
    volumes = {each["name"]: each for each in objects.pod("extender")["volumes"]}
    name = volumes[mount["name"]]["configMap"]["name"]
    content = objects.one("ConfigMap", name)["data"][path.name]
    return parse_configuration(content.encode())


def port_of(container, probe: str) -> int:
    named = {each["name"]: each["containerPort"] for each in container.get("ports", ())}
    port = container[probe]["httpGet"]["port"]
    return named.get(port, port)


@every_rendering
def test_every_object_has_the_recommended_labels(render, folder):
    assert unlabelled(render(folder).all) == []


@every_rendering
def test_both_programs_take_their_flags_and_agree_on_the_unit(render, folder):
    objects = render(folder)
    plugin = plugin_settings(objects)
    assert plugin.node_name == plugin.node_address == "from-the-node"
    assert plugin.unit_mib == parse_unit(extender_settings(objects).memory_unit)


@every_rendering
def test_the_image_is_the_version_that_is_built(render, folder):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    objects = render(folder)
    for kind in ("deviceplugin", "extender"):
        container = objects.container(kind)
        assert container["image"] == f"gpushare:{project['version']}"
        assert container["command"] == [f"gpushare-{kind}"]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (
            PLUGIN,
            {
                "pods": {"list", "watch", "patch"},
                "pods/status": {"patch"},
                "nodes": {"list", "watch"},
                "nodes/status": {"patch"},
                "nodes/pods": {"get"},
                "events": {"create"},
            },
        ),
        (
            EXTENDER,
            {
                "pods": {"get", "list", "watch"},
                "nodes": {"list", "watch"},
                "namespaces": {"list", "watch"},
                "jobs.batch": {"get"},
                "podgroups.scheduling.x-k8s.io": {"list", "watch"},
                "podgroups.scheduling.k8s.io": {"list", "watch"},
                "pods/binding": {"create"},
                "pods/eviction": {"create"},
                "events": {"create"},
                "tokenreviews.authentication.k8s.io": {"create"},
                "subjectaccessreviews.authorization.k8s.io": {"create"},
            },
        ),
    ],
)
def test_a_program_has_just_the_rights_that_it_uses(render, name, wanted):
    rules = render(BASE).one("ClusterRole", name)["rules"]
    granted: dict[str, set[str]] = {}
    for rule in rules:
        assert set(rule) == {"apiGroups", "resources", "verbs"}
        (group,) = rule["apiGroups"]
        for resource in rule["resources"]:
            name = f"{resource}.{group}".rstrip(".")
            granted.setdefault(name, set()).update(rule["verbs"])
    assert granted == wanted


@pytest.mark.parametrize("folder", [each for each in EVERY if each != SECOND])
def test_the_documents_have_what_the_accounts_may_write(render, folder):
    """In second-scheduler mode, the rights of the API server's own roles come in addition."""
    objects = render(folder)
    for name in (PLUGIN, EXTENDER):
        wanted = documented(name, "always", f"`{Path(folder).name}`")
        assert writes(granted_to(objects, name)) == wanted


def granted_to(objects, account: str) -> list[dict[str, Any]]:
    """Return the rules of the roles that an account is bound to."""
    bound = [
        (each["roleRef"]["kind"], each["roleRef"]["name"])
        for each in objects.all
        if each["kind"] in {"RoleBinding", "ClusterRoleBinding"}
        and each["subjects"]
        == [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}]
    ]
    return [rule for kind, name in bound for rule in objects.one(kind, name)["rules"]]


@every_rendering
@pytest.mark.parametrize(("kind", "name"), [("deviceplugin", PLUGIN), ("extender", EXTENDER)])
def test_a_program_runs_as_the_account_that_has_its_rights(render, folder, kind, name):
    objects = render(folder)
    assert objects.pod(kind)["serviceAccountName"] == name
    assert objects.workload(kind)["metadata"]["namespace"] == NAMESPACE
    assert objects.one("ServiceAccount", name)["metadata"]["namespace"] == NAMESPACE
    binding = objects.one("ClusterRoleBinding", name)
    assert binding["roleRef"]["name"] == name
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}]


def test_every_policy_holds_and_names_accounts_that_there_are(render):
    objects = render(BASE)
    policies = {each["metadata"]["name"]: each for each in objects.all if each["kind"] == POLICY}
    bindings = [each["spec"] for each in objects.all if each["kind"] == f"{POLICY}Binding"]
    assert {each["policyName"] for each in bindings} == policies.keys()
    assert all(each["validationActions"] == ["Deny"] for each in bindings)
    for each in policies.values():
        assert each["spec"]["failurePolicy"] == "Fail"
        assert each["spec"]["matchConditions"]
        named = set(re.findall(r"system:serviceaccount:([\w-]+):([\w-]+)", str(each)))
        is_for_all = each["metadata"]["name"] in {
            "gpushare-cdi-annotations",
            "gpushare-created-with-node",
            "gpushare-ephemeral-containers",
            "gpushare-quotas",
        }
        assert bool(named) != is_for_all
        assert named <= {(NAMESPACE, PLUGIN), (NAMESPACE, EXTENDER)}


def keys_in(expression: str) -> set[str]:
    return {each for each in re.findall(r'"([\w./-]+)"', expression) if not each.startswith("sys")}


def test_the_policies_guard_every_key_that_a_binding_writes(render):
    objects = render(BASE)
    request, cards = request_of(builders.pod()), builders.cards(1)
    decision = decision_annotations(request, cards, is_legacy=False, assume_time_ns=1)
    binding = {*decision, ANNOTATION_GANG}
    for name in ("gpushare-decisions", "gpushare-bindings", "gpushare-created-with-node"):
        spec = objects.one(POLICY, name)["spec"]
        keys = keys_in(spec["matchConditions"][-1]["expression"])
        assert keys - {RESOURCE_MEMORY, RESOURCE_COUNT} == binding
    spec = objects.one(POLICY, "gpushare-decisions")["spec"]
    changed, *_ = spec["variables"]
    assert keys_in(changed["expression"]) == binding
    validated = [keys_in(each["expression"]) for each in spec["validations"]]
    assert set().union(*validated) == binding


def test_the_policy_reads_the_annotations_that_the_programs_read(render):
    spec = render(BASE).one(POLICY, "gpushare-cdi-annotations")["spec"]
    listed = re.findall(r'k\.split\("/"\)\[0\] in (\[[^]]*\])', str(spec))
    assert [set(yaml.safe_load(each)) for each in listed] == [set(CDI_ANNOTATIONS)] * 2
    (kinds,) = re.findall(r"(\[[^]]*\])\.exists\(d, ", str(spec))
    assert set(yaml.safe_load(kinds)) == set(CDI_OF_CARDS)
    (rule,) = spec["matchConstraints"]["resourceRules"]
    assert rule["operations"] == ["CREATE", "UPDATE"]
    assert {"pods", "pods/status", "pods/binding", "bindings"} <= set(rule["resources"])


@pytest.mark.parametrize("folder", [BASE, SECOND])
def test_both_programs_may_change_no_more_of_a_pods_status_than_is_listed(render, folder):
    objects = render(folder)

    def rule(name: str) -> tuple[str, ...]:
        """Return the expressions that compare the status before and after."""
        spec = objects.one(POLICY, name)["spec"]
        named = {each["name"]: each["expression"] for each in spec["variables"]}
        (found,) = [e["expression"] for e in spec["validations"] if ".written" in e["expression"]]
        return found.split('"status" || ')[-1], named["before"], named["after"]

    assert rule(OWN_NODE) == rule("gpushare-extender-pods")
    (written,) = [
        keys_in(each["expression"])
        for each in objects.one(POLICY, OWN_NODE)["spec"]["variables"]
        if each["name"] == "written"
    ]
    assert written == {CONDITION_CARD_USABLE}


GATES = "daemonset/components/gates"


def test_only_the_extender_removes_the_gate_and_changes_little_else(render):
    objects = render(GATES)
    (rule,) = objects.one("ClusterRole", "gpushare-gates")["rules"]
    patched = ["pods", "pods/status"]
    assert (rule["resources"], rule["verbs"]) == (patched, ["patch"])
    for name, resources in (("gpushare-gates", ["pods"]), ("gpushare-extender-pods", patched)):
        spec = objects.one(POLICY, name)["spec"]
        (matched,) = spec["matchConstraints"]["resourceRules"]
        assert (matched["resources"], matched["operations"]) == (resources, ["UPDATE"])
        assert spec["failurePolicy"] == "Fail"
        assert f"serviceaccount:{NAMESPACE}:{EXTENDER}" in str(spec)
    _, removes = objects.one(POLICY, "gpushare-gates")["spec"]["matchConditions"]
    assert keys_in(removes["expression"]) == {GATE_ADMISSION}
    variables = objects.one(POLICY, "gpushare-extender-pods")["spec"]["variables"]
    own = {each["name"]: keys_in(each["expression"]) for each in variables}
    assert own["own"] == {ANNOTATION_SLOT, ANNOTATION_POKE, ANNOTATION_EVICTING}
    assert own["gate"] == {GATE_ADMISSION}
    assert own["written"] == {"nominatedNodeName"}


def test_with_its_component_and_no_other_the_extender_may_prepare_evictions(render):
    """The base permits the evictions themselves."""
    name = "gpushare-preemption"
    objects = render("daemonset/components/preemption")
    (patches, reads) = objects.one("ClusterRole", name)["rules"]
    assert patches == {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}
    assert (reads["apiGroups"], reads["resources"]) == (["policy"], ["poddisruptionbudgets"])
    assert reads["verbs"] == ["list", "watch"]
    binding = objects.one("ClusterRoleBinding", name)
    assert binding["roleRef"]["name"] == name
    account = {"kind": "ServiceAccount", "name": EXTENDER, "namespace": NAMESPACE}
    assert binding["subjects"] == [account]
    assert not extender_settings(objects).preemption.enabled
    others = [each for each in EVERY if not each.endswith("/preemption")]
    assert not [
        folder
        for folder in others
        if name in {each["metadata"]["name"] for each in render(folder).all}
    ]


def test_with_its_component_the_extender_may_create_placeholders_in_its_namespace(render):
    name = "gpushare-autoscaling"
    objects = render("daemonset/components/autoscaling")
    role = objects.one("Role", name)
    assert role["metadata"]["namespace"] == NAMESPACE
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "delete"]}
    ]
    assert objects.one("RoleBinding", name)["roleRef"] == {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "Role",
        "name": name,
    }
    policy = objects.one(POLICY, name)["spec"]
    assert policy["failurePolicy"] == "Fail"
    assert f"serviceaccount:{NAMESPACE}:{EXTENDER}" in str(policy["matchConditions"])
    assert LABEL_PLACEHOLDER in str(policy["validations"])
    assert objects.one("PriorityClass", PRIORITY_CLASS)["preemptionPolicy"] == "Never"
    assert PRIORITY_CLASS in str(policy["validations"])
    assert f'c.image == "{IMAGE}"' in str(policy["validations"])
    assert not extender_settings(objects).queue.autoscaled


def test_a_configuration_in_a_component_of_the_users_own_is_the_last_word(render_own):
    """From kubectl 1.31 on, components are applied after generators."""
    found = [each.text for each in blocks(ROOT / "docs/installation-options.md")]
    (component,) = [each for each in found if "kind: Component" in each]
    text = (ROOT / "daemonset/components/gates-webhook/extender.yaml").read_text()
    text = text.replace("GiB", "MiB") + "preemption: {enabled: true, victims: preemptible}\n"
    whole = yaml.safe_load(own("gates-webhook", "preemption"))
    whole["components"].append("configuration")
    files = {
        "configuration/kustomization.yaml": component,
        "configuration/extender.yaml": text,
    }
    objects = render_own(yaml.safe_dump(whole), files)
    for name in ("gpushare-gates", "gpushare-preemption"):
        assert objects.one("ClusterRoleBinding", name)["roleRef"]["name"] == name
    assert extender_settings(objects) == parse_configuration(text.encode())


def test_policy_and_webhook_gate_the_same_pods_and_let_pods_pass_if_they_fail(render):
    policy = render(GATES).one("MutatingAdmissionPolicy", "gpushare-gates")["spec"]
    objects = render("daemonset/components/gates-webhook")
    assert "MutatingAdmissionPolicy" not in objects.kinds()
    (webhook,) = objects.one("MutatingWebhookConfiguration", "gpushare-gates")["webhooks"]
    assert webhook["matchConditions"] == policy["matchConditions"]
    selected = policy["matchConstraints"]["namespaceSelector"]
    assert webhook["namespaceSelector"] == selected
    assert selected["matchLabels"] == {LABEL_QUEUE: "true"}
    assert webhook["failurePolicy"] == policy["failurePolicy"] == "Ignore"
    assert keys_in(policy["matchConditions"][-1]["expression"]) >= {
        RESOURCE_MEMORY, LABEL_GANG, LABEL_POD_GROUP, LABEL_KUEUE_GROUP,
    }  # fmt: skip
    assert keys_in(policy["mutations"][0]["applyConfiguration"]["expression"]) == {GATE_ADMISSION}


def test_the_webhook_of_gates_is_where_the_extender_listens(render):
    objects = render("daemonset/components/gates-webhook")
    (webhook,) = objects.one("MutatingWebhookConfiguration")["webhooks"]
    asked = webhook["clientConfig"]["service"]
    assert asked["path"] == f"{EXTENDER_PREFIX}/{GATING}"
    service = objects.one("Service", asked["name"])["spec"]
    labels = objects.workload("extender")["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()
    (port,) = service["ports"]
    settings = extender_settings(objects)
    assert settings.listen.admission is not None
    assert (port["port"], port["targetPort"]) == (asked["port"], settings.listen.admission.port)
    shipped = extender_settings(render(BASE))
    without = msgspec.structs.replace(settings, listen=shipped.listen)
    assert without == shipped, "the component repeats the base's file"


def test_pods_may_do_without_the_policy_that_keeps_them_off_gpu_nodes(render):
    name = "gpushare-avoid-gpu-nodes"
    objects = render("daemonset/components/avoid-gpu-nodes")
    spec = objects.one("MutatingAdmissionPolicy", name)["spec"]
    assert objects.one("MutatingAdmissionPolicyBinding", name)["spec"] == {"policyName": name}
    assert spec["failurePolicy"] == "Ignore"
    match = spec["matchConstraints"]
    opted_out = {"key": LABEL_AVOID_GPU_NODES, "operator": "NotIn", "values": ["false"]}
    assert match["objectSelector"]["matchExpressions"] == [opted_out]
    own, other = match["namespaceSelector"]["matchExpressions"]
    assert (own["operator"], own["values"]) == ("NotIn", ["kube-system", NAMESPACE])
    assert other == opted_out
    (added,) = (each["jsonPatch"]["expression"] for each in spec["mutations"])
    (selector,) = objects.pod("deviceplugin")["nodeSelector"].items()
    assert selector == (LABEL_NODE, "true")
    assert f'key: "{LABEL_NODE}", operator: "NotIn", values: ["true"]' in added


def test_the_plugin_tolerates_the_taint_that_keeps_pods_without_gpu_off_its_node(render):
    assert render(BASE).pod("deviceplugin")["tolerations"] == [{"operator": "Exists"}]


def test_the_policy_guards_everything_that_the_plugin_may_patch(render):
    objects = render(BASE)
    patched = {
        resource
        for rule in objects.one("ClusterRole", PLUGIN)["rules"]
        if "patch" in rule["verbs"]
        for resource in rule["resources"]
    }
    rules = objects.one(POLICY, OWN_NODE)["spec"]["matchConstraints"]["resourceRules"]
    assert {resource for rule in rules for resource in rule["resources"]} == patched


def test_the_extender_is_asked_where_it_listens(render):
    objects = render(BASE)
    listen = extender_settings(objects).listen.deciding
    assert (listen.host, listen.port) == ("127.0.0.1", EXTENDER_PORT)
    assert objects.pod("extender")["hostNetwork"] is True
    (asked,) = scheduler_config()["extenders"]
    assert asked["urlPrefix"] == f"http://127.0.0.1:{EXTENDER_PORT}{EXTENDER_PREFIX}"


def scheduler_config():
    return yaml.safe_load((ROOT / "daemonset/scheduler/config.yaml").read_text())


def test_kube_scheduler_asks_for_both_resources_and_never_binds_without_an_answer():
    (asked,) = scheduler_config()["extenders"]
    assert {each["name"] for each in asked["managedResources"]} == {RESOURCE_MEMORY, RESOURCE_COUNT}
    # Ignored by the scheduler they would not be subtracted from the node's sum.
    assert not any(each["ignoredByScheduler"] for each in asked["managedResources"])
    assert not asked["ignorable"]


def test_kube_scheduler_may_write_as_fast_as_pods_are_bound_and_sees_every_node():
    config = scheduler_config()
    # An Event for each pod, and a Binding for each that does not ask for GPU memory.
    assert config["clientConnection"]["qps"] >= 1000
    assert config["clientConnection"]["burst"] >= config["clientConnection"]["qps"]
    assert config["percentageOfNodesToScore"] == 100


def test_kube_scheduler_calls_verbs_that_the_extender_has_and_waits_long_enough():
    (asked,) = scheduler_config()["extenders"]
    verbs = {value for key, value in asked.items() if key.endswith("Verb")}
    bench = Bench()
    app = Routes(bench.cluster, bench.binder, list).app()
    served = {resource.canonical for resource in app.router.resources()}
    assert {f"{EXTENDER_PREFIX}/{verb}" for verb in verbs} <= served
    assert float(asked["httpTimeout"].removesuffix("s")) > WRITE_SECONDS + READ_SECONDS


@every_rendering
@pytest.mark.parametrize("probe", ["readinessProbe", "livenessProbe"])
def test_probes_knock_where_the_programs_answer(render, folder, probe):
    objects = render(folder)
    plugin, its = objects.container("deviceplugin"), plugin_settings(objects)
    assert port_of(plugin, probe) == its.http_port
    assert "host" not in plugin[probe]["httpGet"]
    assert its.http_host == "0.0.0.0"  # the kubelet comes from outside the pod
    container, listen = objects.container("extender"), extender_settings(objects).listen.deciding
    if "exec" in container[probe]:  # its loopback is the pod's own
        assert container[probe]["exec"]["command"][:3] == ["python3", "-m", "extender.probe"]
        return
    listen = extender_settings(objects).listen.deciding
    assert port_of(container, probe) == listen.port
    assert container[probe]["httpGet"]["host"] == listen.host


@pytest.mark.parametrize(("folder", "seconds"), [(BASE, 15), (SECOND, 22)])
def test_probes_end_an_extender_that_hangs_but_not_a_busy_one(render, folder, seconds):
    objects = render(folder)
    alive = objects.container("extender")["livenessProbe"]
    period, asked = alive["periodSeconds"], alive["timeoutSeconds"]
    others = period * (alive["failureThreshold"] - 1)
    at_most = period + others + asked + alive["terminationGracePeriodSeconds"]
    assert at_most <= seconds, "docs/troubleshooting.md says so"
    assert others + asked >= 8, "the longest pause that was ever measured is far below"
    if "exec" in alive:
        assert asked > probe.SECONDS


@every_rendering
def test_no_program_is_killed_because_it_loads_slowly(render, folder):
    alive = [
        container
        for each in render(folder).workloads()
        for container in each["spec"]["template"]["spec"]["containers"]
        if "livenessProbe" in container
    ]
    assert {"deviceplugin", "extender"} <= {each["name"] for each in alive}
    for each in alive:
        start = each["startupProbe"]
        assert start["periodSeconds"] * start["failureThreshold"] >= 120


@pytest.mark.parametrize("folder", [BASE, SECOND])
def test_an_extender_has_time_to_finish_binds_and_release_its_lease(render, folder):
    grace = render(folder).pod("extender")["terminationGracePeriodSeconds"]
    doors = 4
    assert grace > WRITE_SECONDS + Timing().attempt + doors * STOP_SECONDS
    assert STOP_SECONDS > ANSWER_SECONDS


def test_an_extender_ends_before_the_next_starts_and_a_plugin_when_the_next_stands_by(render):
    objects = render(BASE)
    for name, most, surge in (("extender", 1, 0), ("deviceplugin", 0, 1)):
        workload = objects.workload(name)
        assert workload["kind"] == "DaemonSet"
        strategy = workload["spec"]["updateStrategy"]["rollingUpdate"]
        assert strategy == {"maxUnavailable": most, "maxSurge": surge}


def test_a_plugin_has_the_time_to_hand_over(render):
    assert render(BASE).pod("deviceplugin")["terminationGracePeriodSeconds"] > LEAVE_SECONDS


@pytest.mark.parametrize("folder", [BASE, SECOND])
def test_replicas_find_their_lease_their_certificates_and_one_another(render, folder):
    objects = render(folder)
    election = extender_settings(objects).leader_election
    container = objects.container("extender")
    mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    volumes = {each["name"]: each for each in objects.pod("extender")["volumes"]}
    paths = {Path(p) for p in (election.tls.certificate, election.tls.key, election.tls.authority)}
    (place,) = {path.parent for path in paths}
    assert {path.name for path in paths} == {"tls.crt", "tls.key", "ca.crt"}
    secret = volumes[mounts[str(place)]]["secret"]["secretName"]
    assert secret == f"{certificates.REPLICA}-tls"
    assert election.tls.allowed_names == (certificates.REPLICA,)
    (told,) = (e for e in container["env"] if e["name"] == leadership.ADDRESS_VARIABLE)
    assert told["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    role = objects.one("Role", EXTENDER)
    assert role["metadata"]["namespace"] == election.namespace
    create, own = role["rules"]
    assert (create["resources"], create["verbs"]) == (["leases"], ["create"])
    assert (own["resourceNames"], own["verbs"]) == ([election.name], ["get", "update"])


def test_the_second_scheduler_asks_as_the_first_one_would_and_has_a_lease_of_its_own(render):
    objects = render(SECOND)
    (name,) = (
        each["configMap"]["name"]
        for each in objects.pod("kube-scheduler")["volumes"]
        if each["name"] == "scheduler"
    )
    config = yaml.safe_load(objects.one("ConfigMap", name)["data"]["config.yaml"])
    first = scheduler_config()
    assert config["extenders"] == first["extenders"]
    assert config["percentageOfNodesToScore"] == first["percentageOfNodesToScore"]
    election = config["leaderElection"]
    own = objects.one("Role", "gpushare-scheduler")["rules"][0]
    assert own["resourceNames"] == [election["resourceName"]]
    assert election["resourceNamespace"] == NAMESPACE
    assert objects.workload("kube-scheduler")["spec"]["replicas"] == 2
    assert "gpushare-extender" not in {
        each["metadata"]["name"] for each in objects.all if each["kind"] == "DaemonSet"
    }


def test_a_drain_leaves_a_replica_of_the_second_scheduler(render):
    objects = render(SECOND)
    budget = objects.one("PodDisruptionBudget")["spec"]
    drained = objects.workload("kube-scheduler")["spec"]
    assert budget["selector"] == drained["selector"]
    assert budget["maxUnavailable"] < drained["replicas"]


@every_rendering
def test_the_plugin_runs_on_labelled_nodes_whatever_taints_they_have(render, folder):
    pod = render(folder).pod("deviceplugin")
    one_by_one = {"gpushare.aliyun.com/plugin": "new"} if folder.endswith("migrating") else {}
    assert pod["nodeSelector"] == {LABEL_NODE: "true", **one_by_one}
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert pod["priorityClassName"] == "system-node-critical"


@every_rendering
def test_the_plugin_has_the_folders_that_it_uses_and_no_private_key(render, folder):
    objects = render(folder)
    settings = plugin_settings(objects)
    paths = {
        each["name"]: each["hostPath"]["path"] for each in objects.pod("deviceplugin")["volumes"]
    }
    mounts = {each["name"]: each for each in objects.container("deviceplugin")["volumeMounts"]}
    assert set(mounts) == set(paths)
    writable = {each["mountPath"] for each in mounts.values() if not each.get("readOnly")}
    used = {str(settings.device_plugin_dir), str(settings.cdi_dir), str(settings.state_dir)}
    assert writable - {"/dev"} == used
    assert mounts["cgroup"]["mountPath"] == paths["cgroup"] == str(settings.cgroup_dir)
    is_unknown = folder.endswith(("before-1.30", "migrating"))  # Kubernetes 1.29 rejects the field
    wanted = None if is_unknown else "IfPossible"
    assert mounts["cgroup"].get("recursiveReadOnly") == wanted
    pki = {path for path in paths.values() if "/pki" in path}
    is_known_by_authority = folder.endswith("signed-kubelet")
    assert pki == (set() if is_known_by_authority else {str(settings.kubelet_certificate)})


@every_rendering
def test_neither_program_has_more_of_the_machine_than_it_needs(render, folder):
    objects = render(folder)
    for kind in ("deviceplugin", "extender"):
        pod, container = objects.pod(kind), objects.container(kind)
        security = container["securityContext"]
        measures = kind == "deviceplugin" and folder.endswith("process-memory")
        assert {"hostPID", "hostIPC"} & pod.keys() == ({"hostPID"} if measures else set())
        assert security["readOnlyRootFilesystem"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["resources"]["limits"].keys() == {"memory"}
        if security.get("privileged"):
            assert (kind, folder) == ("deviceplugin", "daemonset/components/driver-root")
        else:
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
    assert "hostNetwork" not in objects.pod("deviceplugin")
    assert objects.pod("extender")["securityContext"]["runAsNonRoot"] is True


@every_rendering
def test_only_its_component_changes_a_setting(render, folder):
    objects = render(folder)
    settings = plugin_settings(objects)
    assert settings.binding == ("early" if folder.endswith("early-binding") else "auto")
    assert settings.reads_process_memory is folder.endswith("process-memory")
    assert settings.framework_limits is folder.endswith("framework-limits")
    assert (settings.memory_limit, settings.reserve) == ("auto", NO_RESERVE)
    assert bool(settings.simulated_mib) is folder.endswith("simulated-gpus")
    has_policies = any(each.startswith("ValidatingAdmission") for each in objects.kinds())
    assert has_policies is not folder.endswith(("before-1.30", "migrating"))


CLASSES = {"nvidia", "nvidia-cdi", "nvidia-legacy"}


@every_rendering
def test_only_default_runtime_expects_nvidias_runtime_without_a_class(render, folder):
    objects = render(folder)
    wanted = CLASSES | ({""} if folder.endswith("default-runtime") else set())
    assert plugin_settings(objects).runtime_classes == wanted
    named = objects.pod("deviceplugin").get("runtimeClassName", "")
    assert named in wanted or folder.endswith(("driver-root", "simulated-gpus"))
    if POLICY in objects.kinds():
        policy = objects.one(POLICY, "gpushare-ephemeral-containers")
        condition = policy["spec"]["matchConditions"][0]["expression"]
        assert {*re.findall(r'"([a-z-]*)"', condition.partition(" in ")[2])} == wanted


def test_inject_cdi_reads_nvidias_files_and_cannot_change_them(render):
    objects = render("daemonset/components/inject-cdi")
    settings = plugin_settings(objects)
    assert settings.inject == "cdi"
    mounts = {each["mountPath"]: each for each in objects.container("deviceplugin")["volumeMounts"]}
    for folder in settings.nvidia_cdi_dirs:
        assert str(folder) in mounts
    assert mounts["/etc/cdi"]["readOnly"] is True


def test_signed_kubelet_knows_the_kubelet_by_the_clusters_authority(render):
    objects = render("daemonset/components/signed-kubelet")
    account = "/var/run/secrets/kubernetes.io/serviceaccount"
    assert plugin_settings(objects).kubelet_tls == "ca"
    assert str(plugin_settings(objects).kubelet_certificate) == f"{account}/ca.crt"
    assert not any(
        "/pki" in each["hostPath"]["path"] for each in objects.pod("deviceplugin")["volumes"]
    )


def test_the_plugin_may_change_nodes_only_with_the_policy_that_leaves_it_one_taint(render):
    objects = render("daemonset/components/startup-taint")
    assert plugin_settings(objects).removes_startup_taint
    name = "gpushare-startup-taint"
    (rule,) = objects.one("ClusterRole", name)["rules"]
    assert rule == {"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]}
    policy = objects.one(POLICY, name)["spec"]
    assert f"{NAMESPACE}:{PLUGIN}" in policy["matchConditions"][0]["expression"]
    assert TAINT_NOT_READY in str(policy["validations"])
    assert objects.one(f"{POLICY}Binding", name)["spec"]["validationActions"] == ["Deny"]
    tolerations = objects.pod("deviceplugin")["tolerations"]
    assert {"operator": "Exists"} in tolerations, "else it would wait for itself"


@pytest.mark.parametrize("runtime", ["default-runtime", "driver-root"])
@pytest.mark.parametrize("binding", ["early-binding", "inject-cdi"])
def test_components_that_do_not_exclude_each_other_go_together(render_own, runtime, binding):
    others = {
        "before-1.30",
        "framework-limits",
        "gpu-operator",
        "network-policy",
        "preemption",
        "process-memory",
        "signed-kubelet",
    }
    exclusive = {"early-binding", "inject-cdi", "default-runtime", "driver-root", "simulated-gpus"}
    # before-1.30 has no place for them.
    with_policies = {
        "autoscaling",
        "avoid-gpu-nodes",
        "gates",
        "gates-webhook",
        "scheduler-name",
        "startup-taint",
    }
    assert others | exclusive | with_policies == {Path(each).name for each in COMPONENTS}
    objects = render_own(own(runtime, binding, *sorted(others)))
    settings = plugin_settings(objects)
    assert (settings.binding == "early") == (binding == "early-binding")
    assert (settings.inject == "cdi") == (binding == "inject-cdi")
    assert settings.kubelet_tls == "ca"
    assert "runtimeClassName" not in objects.pod("deviceplugin")
    assert "ValidatingAdmissionPolicy" not in objects.kinds()


@pytest.mark.parametrize(("sample", "units"), [("deployment.yaml", 2), ("local.yaml", 1024)])
def test_a_sample_asks_for_what_the_extender_reads(sample, units):
    deployment = yaml.safe_load((ROOT / "daemonset/samples" / sample).read_text())
    template = deployment["spec"]["template"]
    pod = msgspec.json.decode(msgspec.json.encode(template), type=Pod)
    assert request_of(pod).units == units
    assert deployment["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]


GANGS = [
    ("job", 1, 4, 4),
    ("trainer", 1, 4, 3),
    ("jobset", 1, 4, 4),
    ("pytorchjob", 1, 4, 4),
    ("trainjob", 1, 4, 4),
    ("raycluster", 1, 4, 3),
    ("leaderworkerset", 2, 2, 2),
    ("mpijob", 1, 4, 3),
]


@pytest.mark.parametrize(("sample", "gangs", "members", "gpus"), GANGS)
def test_all_pods_of_a_sample_gang_are_needed(sample, gangs, members, gpus):
    """Only then none starts without the others."""
    found = gangs_of_sample(sample, gpus - 1)
    assert len(found) == gangs
    for gang in found:
        assert (gang.members, gang.minimum, gang.phase) == (members, members, "WaitingForRoom")
        assert f"{gpus} x 8 GiB" in gang.text


@pytest.mark.parametrize(("sample", "gangs", "members", "gpus"), GANGS)
def test_a_sample_gang_starts_on_nodes_with_the_usual_taint(sample, gangs, members, gpus):
    found = gangs_of_sample(
        sample, gangs * gpus, "taints: [{key: nvidia.com/gpu, effect: NoSchedule}]"
    )
    assert [gang.phase for gang in found] == ["Placed"] * gangs


def gangs_of_sample(sample, gpus, spec=""):
    """Return its gangs on a node with so many GPUs of 8 GiB, beside a node without."""
    path = ROOT / f"daemonset/samples/gang-{sample}.yaml"
    zone = "labels: {topology.kubernetes.io/zone: a}"
    nodes = (
        f"kind: Node\nmetadata: {{name: n, {zone}}}\ngpus: {gpus} x 8\nspec: {{{spec}}}\n---\n"
        f"kind: Node\nmetadata: {{name: m, {zone}}}\n---\n"
    )
    [step] = Run(build(read(path.name, nodes.encode() + path.read_bytes())), Policies()).steps()
    return step.gangs


def test_the_sample_policy_gives_pods_what_filter_wants_of_them():
    policy, binding = yaml.safe_load_all(
        (ROOT / "daemonset/samples/runtime-class.yaml").read_text()
    )
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    first, *others = (
        each["applyConfiguration"]["expression"] for each in policy["spec"]["mutations"]
    )
    assert 'runtimeClassName: "nvidia"' in first
    assert "nvidia" in CLASSES
    for each, kind in zip(others, ("containers", "initContainers"), strict=True):
        assert f"Object.spec{{{kind}:" in each
        assert RESOURCE_MEMORY in each
        assert f'name: "{ENV_VISIBLE_DEVICES}", value: "{NO_CARD}"' in each
