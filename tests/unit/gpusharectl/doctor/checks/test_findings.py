"""One thing is broken at a time: just that is found, with its cause and its cure."""

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.annotations import inventory
from gpushare.contract import (
    ANNOTATION_ASSIGNED,
    ANNOTATION_ASSUME_TIME,
    ANNOTATION_CARDS,
    ANNOTATION_CORDONED_CARDS,
    ANNOTATION_INDEX,
    ANNOTATION_INVENTORY,
    ANNOTATION_ISOLATION,
    ANNOTATION_RUNNING_ON,
    GATE_ADMISSION,
    MODEL_SIMULATED,
    RESOURCE_COUNT,
    RESOURCE_MEMORY,
)
from gpushare.objects.model import Container, Node, NodeSpec, PodCondition, Resources
from gpushare.objects.scheduling import SchedulingGate, Taint, Toleration
from gpushare.quota.namespaces import Namespace
from gpushare.quota.quota import parse
from gpusharectl.doctor.checks import gates
from gpusharectl.doctor.checks.findings import (
    KINDS,
    NOT_CHECKED,
    DoctorFinding,
    Outcome,
    Severity,
    examine,
)
from gpusharectl.doctor.checks.scheduler import plain
from gpusharectl.doctor.command import CHECKS
from gpusharectl.doctor.facts.cluster import (
    LISTS_NAMESPACES,
    NOMINATES,
    PATCHES,
    PREEMPTS,
    Facts,
    LeaderElection,
    OperatorSettings,
    Permission,
    Quota,
    Scheduler,
    Unknown,
    Webhook,
    Workload,
)
from gpusharectl.doctor.facts.seen import SeenContainer, SeenContainerStatus, SeenPod
from tests.builders import annotated, legacy_node, stock
from tests.unit.gpusharectl.doctor.clusters import (
    ASKED,
    EXTENDERS,
    NOW,
    control_plane,
    eks,
    labelled,
    loaded,
    node,
    of_daemon_set,
    own,
    plain_node,
    pod,
    program,
    scheduler,
    waiting,
    well,
    with_node,
    with_pods,
    with_status,
    without_inventory,
)

PLUGINS = "gpushare-deviceplugin"
PLUGIN = f"{PLUGINS}-n1"
EXTENDER = "gpushare-extender-cp1"
LEADER = program("gpushare_extender_leader 1\n")
SCHEDULER = "kube-system/kube-scheduler-cp1"


def look(facts: Facts) -> list[DoctorFinding]:
    return [found for result in examine(facts, CHECKS) for found in result.findings]


def of_plugin(metrics: str) -> Facts:
    return well(plugins={**well().plugins, PLUGIN: program(metrics)})


def of_extender(metrics: str, *reasons: str, version: str = "0.1.0") -> Facts:
    metrics += f"gpushare_extender_leader 1\n{ASKED}"
    return well(extenders={EXTENDER: program(metrics, *reasons, version=version)})


def certificate(left: dt.timedelta) -> Facts:
    end = (NOW + left).timestamp()
    return of_extender(
        f'gpushare_extender_certificate_end_timestamp_seconds{{file="/tls.crt"}} {end}\n'
    )


def decided(card: str = "GPU-0", **more: str) -> dict[str, str]:
    at = str(int(NOW.timestamp() - 60) * 10**9)
    return {ANNOTATION_CARDS: card, ANNOTATION_INDEX: "0", ANNOTATION_ASSUME_TIME: at, **more}


def configured(**changes: Any) -> Scheduler:
    """kube-scheduler with another configuration, in lower case."""
    made = scheduler()
    return replace(made, configuration={**made.configuration, **changes})


def unlabelled() -> Facts:
    facts = with_node(node("n1", is_shared=False))
    return well(nodes=facts.nodes, pods=with_pods(without=PLUGIN).pods, plugins={})


def limited(quota: str, namespace: str = "mine", **changes: Any) -> Facts:
    """A cluster with a quota of a namespace."""
    return well(limits=(Namespace(namespace, quota=parse(quota)),), **changes)


LONG_AGO = {ANNOTATION_ASSIGNED: "false", ANNOTATION_ASSUME_TIME: "1" + "0" * 18}
UNUSABLE = PodCondition("gpushare.aliyun.com/CardUsable", "False", "CardGone", "-")
FORMER = "http://127.0.0.1:32766/gpushare-scheduler"


def injected(name: str, injection: str, *classes: str) -> Node:
    """A node whose cards come into containers in this way."""
    found = replace(stock(16, 16), injection=injection, runtime_classes=frozenset(classes))
    return annotated(node(name), {ANNOTATION_INVENTORY: inventory.encode(found)})


def simulated() -> Node:
    found = stock(16, 16)
    cards = tuple(replace(card, model=MODEL_SIMULATED) for card in found.cards)
    return annotated(
        node("n1"), {ANNOTATION_INVENTORY: inventory.encode(replace(found, cards=cards))}
    )


def with_a_helper() -> Facts:
    facts = with_node(injected("n1", "cdi", "", "nvidia"))
    made = pod("two")
    spec = msgspec.structs.replace(made.spec, containers=(*made.containers, Container("helper")))
    two = msgspec.structs.replace(made, spec=spec)
    return well(nodes=facts.nodes, pods=(*facts.pods, two))


def with_plugin(*statuses: SeenContainerStatus) -> Facts:
    return with_pods(own("gpushare-deviceplugin", "n1", *statuses), without=PLUGIN)


def second_scheduler(image: str, server: str = "v1.34.4") -> Facts:
    there = own("gpushare-scheduler", "cp1", images={"kube-scheduler": image})
    facts = with_pods(there, without=EXTENDER)
    extenders = {there.metadata.name: EXTENDERS[EXTENDER]}
    return well(pods=facts.pods, extenders=extenders, server=server)


def with_gates() -> Facts:
    """A cluster that is well, where a policy gates pods."""
    facts = well()
    return replace(
        facts,
        gating=frozenset({"mutatingadmissionpolicybindings"}),
        gates=True,
        policies=facts.policies | {gates.POLICY},
        policy_bindings=facts.policy_bindings | {gates.POLICY},
        permissions={**facts.permissions, PATCHES: True, NOMINATES: True},
    )


def with_preemption() -> Facts:
    """A cluster that is well, where the extender evicts pods for more important ones."""
    facts = well()
    given = {**facts.permissions, **dict.fromkeys(PREEMPTS, True)}
    return replace(facts, preempts=True, permissions=given)


def gated(seconds: int = 3600) -> SeenPod:
    """A gated pod that is so many seconds old."""
    made = pod("gated", on=None)
    created = (NOW - dt.timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")
    metadata = msgspec.structs.replace(made.metadata, creation_timestamp=created)
    spec = msgspec.structs.replace(made.spec, scheduling_gates=(SchedulingGate(GATE_ADMISSION),))
    return msgspec.structs.replace(made, metadata=metadata, spec=spec)


def authority(name: str) -> bytes:
    return f"-----BEGIN CERTIFICATE-----\n{name}\n-----END CERTIFICATE-----\n".encode()


def with_operator(found: OperatorSettings, plugin: Workload) -> Facts:
    return well(operators=(found,), workloads={**well().workloads, PLUGINS: plugin})


def short_of_cpu() -> Facts:
    """Pods without GPU hold all the cores that pods with GPU memory have left on a node."""
    found = with_node(with_status("n1", {}, {"cpu": "8"}))
    trains, web = loaded("trains", "n1", cpu="1", gpu_mem="4"), loaded("serves", "n1", cpu="7")
    return well(nodes=found.nodes, pods=(*found.pods, trains, web))


def requesting(limits: dict[str, str], *, scheduler: str = "default-scheduler") -> SeenPod:
    """A Pending pod with these limits."""
    made = pod("asks", None, on=None, scheduler=scheduler)
    containers = (SeenContainer("main", Resources(limits, limits)),)
    spec = msgspec.structs.replace(made.spec, containers=containers)
    return msgspec.structs.replace(made, spec=spec)


GPU_TAINT = Taint("nvidia.com/gpu", "NoSchedule", "present")


def tainted(*taints: Taint, tolerates: Toleration | None = None, spared: int = 0) -> Facts:
    """A cluster with two Pending pods, and these taints on all shared nodes but ``spared``."""
    facts = with_pods(pod("waits-too", on=None))
    shared = [each.name for each in facts.nodes if each.labels.get("gpushare") == "true"]
    nodes = [
        msgspec.structs.replace(each, spec=NodeSpec(taints=taints))
        if each.name in shared[spared:]
        else each
        for each in facts.nodes
    ]
    pods = [
        msgspec.structs.replace(
            each, spec=msgspec.structs.replace(each.spec, tolerations=(tolerates,))
        )
        if tolerates is not None and each.metadata.name == "waits-too"
        else each
        for each in facts.pods
    ]
    return replace(facts, nodes=tuple(nodes), pods=tuple(pods))


ADDED_AFFINITY = {
    "addedAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "Exists"}]}]
        }
    }
}
BREAKS: dict[str, Callable[[], Facts]] = {
    "PluginMissing": lambda: well(
        nodes=(*well().nodes, with_status("n3", {RESOURCE_MEMORY: 0}, {RESOURCE_MEMORY: 0}))
    ),
    "PluginNotReady": lambda: with_pods(
        own("gpushare-deviceplugin", "n1", is_ready=False), without=PLUGIN
    ),
    "NothingOffered": lambda: with_node(with_status("n1", {}, {RESOURCE_MEMORY: "0"})),
    "InventoryMissing": lambda: with_node(without_inventory(node("n1"))),
    "InventoryUnreadable": lambda: with_node(
        annotated(node("n1"), {ANNOTATION_INVENTORY: '{"version": 9'})
    ),
    "InventoryDiffers": lambda: with_node(with_status("n1", {}, {RESOURCE_MEMORY: "31"})),
    "UnitsMixed": lambda: with_node(node("n1", unit_mib=1024)),
    "DeviceListTooLong": lambda: with_node(node("n1", *[50_000] * 5)),
    "DeviceListLarge": lambda: with_node(node("n1", 60_000, 60_000)),
    "CardUnitsMany": lambda: with_node(node("n1", 80_000)),
    "KubeletTooOld": lambda: with_node(node("n1", kubelet="v1.26.9")),
    "WholeCardPlugin": lambda: with_node(with_status("n1", {"nvidia.com/gpu": 2}, {})),
    "NodeNotLabelled": unlabelled,
    "OlderPlugin": lambda: well(nodes=(*well().nodes, legacy_node("old", 16, 2))),
    "CardUnhealthy": lambda: with_node(node("n1", 16, 16, unhealthy=[1])),
    "SimulatedGpus": lambda: with_node(simulated()),
    "CordonUnreadable": lambda: with_node(
        annotated(node("n1"), {ANNOTATION_CORDONED_CARDS: "GPU-7"})
    ),
    "PluginBlocked": lambda: of_plugin('gpushare_deviceplugin_blocked{name="kubelet"} 1.0'),
    "DevicesForgotten": lambda: of_plugin("gpushare_deviceplugin_forgotten_pods 2.0"),
    "IsolationUnserved": lambda: with_pods(
        pod("strict", on=None, annotations={ANNOTATION_ISOLATION: "required"})
    ),
    "MemoryLimitMissing": lambda: of_plugin("gpushare_deviceplugin_limits_missing 1.0"),
    "ExtenderMissing": lambda: well(nodes=(*well().nodes, control_plane("cp2"))),
    "ExtenderNotReady": lambda: of_extender("", "the cache is not synced"),
    "ExtenderSilent": lambda: well(extenders={EXTENDER: Unknown("it does not answer")}),
    "NoLeader": lambda: well(election=LeaderElection("gone", 6, is_renewed=False)),
    "ManyLeaders": lambda: well(extenders={**EXTENDERS, "gpushare-extender-cp2": LEADER}),
    "VersionSkew": lambda: of_extender("", version="0.3.0"),
    "PluginNewer": lambda: of_extender("", version="0.0.9"),
    "ConfigurationUnusable": lambda: well(memory_unit="GB"),
    "CertificateExpired": lambda: certificate(dt.timedelta(seconds=-1)),
    "CertificateEnds": lambda: certificate(dt.timedelta(days=29)),
    "LedgerDiffers": lambda: of_extender("gpushare_ledger_differences_total 1\n"),
    "DecisionChanged": lambda: of_extender("gpushare_changed_decisions 1\n"),
    "OutcomeUnknown": lambda: of_extender("gpushare_unknown_reserves 1\n"),
    "SchedulerWithoutExtender": lambda: well(schedulers={SCHEDULER: configured(extenders=[])}),
    "SchedulerSettingWrong": lambda: well(schedulers={SCHEDULER: scheduler(ignorable=True)}),
    "SchedulerSettingOff": lambda: well(schedulers={SCHEDULER: scheduler(weight=150)}),
    "SchedulerRuleUnknown": lambda: well(
        schedulers={
            SCHEDULER: configured(
                profiles=plain(
                    [{"pluginConfig": [{"name": "NodeAffinity", "args": ADDED_AFFINITY}]}]
                )
            )
        }
    ),
    "ExtenderNotBeside": lambda: well(schedulers={SCHEDULER: scheduler("cp9")}),
    "ExtenderPortIsNodePort": lambda: well(schedulers={SCHEDULER: scheduler(urlprefix=FORMER)}),
    "ExtenderPortTaken": lambda: well(
        schedulers={SCHEDULER: scheduler(urlprefix=FORMER)},
        node_ports={"team/web": frozenset({32766}), "team/api": frozenset({32767})},
    ),
    "ExtenderNeverAsked": lambda: well(schedulers={}, extenders={EXTENDER: LEADER}),
    "SchedulerNotListed": lambda: well(scheduler_names=frozenset({"gpushare-scheduler"})),
    "PodOfAnotherScheduler": lambda: with_pods(pod("lost", on=None, scheduler="other")),
    "PolicyMissing": lambda: well(policy_bindings=well().policy_bindings - {"gpushare-bindings"}),
    "PermissionMissing": lambda: well(
        permissions={Permission("gpushare-extender", "create", "pods/binding"): False}
    ),
    "PodGroupsUnreadable": lambda: well(
        permissions={
            Permission("gpushare-extender", "list", "podgroups", "scheduling.k8s.io"): False
        }
    ),
    "RuntimeClassMissing": lambda: well(runtime_classes=frozenset({"runc"})),
    "QuotaUsedUp": lambda: well(quotas=(Quota("team", "gpus", "1k", "1000"),)),
    "PodsNotGated": lambda: well(queues=frozenset({"team-b"})),
    "PodsStayGated": lambda: replace(
        with_pods(gated()), permissions={**WELL.permissions, PATCHES: False}
    ),
    "GateUnprotected": lambda: well(gating=frozenset({"mutatingadmissionpolicybindings"})),
    "QuotaInQueue": lambda: replace(with_gates(), queues=frozenset({"team"})),
    "QuotaUnreadable": lambda: well(limits=(Namespace("mine", problem="it is wrong"),)),
    "QuotaNotEnforced": lambda: limited(
        "16", permissions={**WELL.permissions, LISTS_NAMESPACES[0]: False}
    ),
    "QuotaTooLarge": lambda: limited("65"),
    "QuotaOfNoModel": lambda: limited("16,Tesla T4=16"),
    "PreemptionNotPermitted": lambda: replace(
        with_preemption(), permissions={**WELL.permissions, **dict.fromkeys(PREEMPTS, False)}
    ),
    "PreemptionOff": lambda: replace(with_preemption(), preempts=False),
    "GpuNodesShortOfCpu": short_of_cpu,
    "CandidatesUnlimited": lambda: well(placement={"candidates": 0}),
    "NodePolicySpread": lambda: well(placement={"node": "spread"}),
    "PodWithoutDecision": lambda: with_pods(pod("bare", annotations={})),
    "NvidiaRuntimeUnreachable": lambda: with_node(injected("n2", "runtime-cdi", "mine")),
    "PodNeedsNvidiaRuntime": lambda: with_node(injected("n1", "runtime", "nvidia")),
    "PodExposesCards": with_a_helper,
    "PodUnplaced": lambda: with_pods(pod("gone", annotations=decided("GPU-9"))),
    "PodCannotStart": lambda: with_pods(pod("stuck", conditions=(UNUSABLE,))),
    "PodNotStarted": lambda: with_pods(pod("slow", annotations=decided(**LONG_AGO))),
    "PodRefused": lambda: with_pods(pod("bytes", "8Gi", on=None)),
    "MistakenResource": lambda: with_pods(requesting({"aliyun.com/gpu-memory": "8"})),
    "TaintNotTolerated": lambda: tainted(GPU_TAINT),
    "PodContradicted": lambda: with_pods(
        pod("forged", annotations=decided(**{ANNOTATION_RUNNING_ON: '{"main":{"GPU-1":4}}'}))
    ),
    "NotInstalled": eks,
    "PartMissing": lambda: well(
        pods=with_pods(without=EXTENDER).pods,
        extenders={},
        election=None,
        memory_unit=None,
        workloads={"gpushare-deviceplugin": Workload("DaemonSet", 2)},
        schedulers={},
    ),
    "NoNodeShared": lambda: well(
        nodes=(control_plane(), plain_node("n1")),
        pods=(own("gpushare-extender", "cp1"),),
        plugins={},
    ),
    "ImageNotPulled": lambda: with_plugin(waiting("ImagePullBackOff")),
    "ProgramNotCreated": lambda: with_plugin(waiting("CreateContainerConfigError")),
    "ProgramCrashes": lambda: with_plugin(waiting("CrashLoopBackOff")),
    "SecondSchedulerVersion": lambda: second_scheduler("registry.k8s.io/kube-scheduler:v1.33.0"),
    "WebhookAuthorityDiffers": lambda: replace(
        second_scheduler("registry.k8s.io/kube-scheduler:v1.34.4"),
        webhooks={"own": Webhook(trusts=authority("old"), authority=authority("new"))},
    ),
    "MigOnSharedNode": lambda: with_node(
        labelled(node("n1"), {"nvidia.com/mig.config": "all-balanced"})
    ),
    "MpsOnSharedNode": lambda: with_pods(of_daemon_set("mps", "n1", "mps-control-daemon-ctr")),
    "DraDriverOnSharedNode": lambda: with_pods(
        of_daemon_set("dra", "n1", "gpus", **{"nvidia-dra-driver-gpu-component": "kubelet-plugin"})
    ),
    "PluginWithoutDriver": lambda: with_operator(
        OperatorSettings("policy", uses_cdi=True), Workload("DaemonSet", 2)
    ),
    "NvidiaRuntimeIsDefault": lambda: with_operator(
        OperatorSettings("policy", uses_cdi=False),
        Workload("DaemonSet", 2, runtime_class="nvidia"),
    ),
    "DriverRootDiffers": lambda: with_operator(
        OperatorSettings("policy", uses_cdi=True, installs_driver=False),
        Workload("DaemonSet", 2, driver_library="/run/nvidia/driver/usr/lib/libnvidia-ml.so.1"),
    ),
    "NotChecked": lambda: well(quotas=Unknown("you lack the right to list resourcequotas")),
}


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(well(), id="a cluster that is well"),
        pytest.param(
            well(server="v1.29.9", policies=frozenset(), policy_bindings=frozenset()),
            id="Kubernetes has no policies",
        ),
        pytest.param(well(schedulers={}), id="an extender was called"),
        pytest.param(
            replace(with_gates(), queues=frozenset({"other"}), pods=with_pods(gated()).pods),
            id="a gated pod waits for room",
        ),
        pytest.param(limited("64"), id="a quota of the whole cluster"),
        pytest.param(
            well(permissions={**well().permissions, **dict.fromkeys(LISTS_NAMESPACES, False)}),
            id="nothing is limited, so nobody need know",
        ),
        pytest.param(with_preemption(), id="preemption has its rights without gates"),
        pytest.param(with_node(injected("n1", "cdi", "nvidia")), id="CDI needs no RuntimeClass"),
    ],
)
def test_nothing_is_found_where_nothing_is_wrong(facts):
    assert look(facts) == []


def test_every_kind_of_finding_is_seen_here():
    assert set(BREAKS) == set(KINDS)


def test_every_cure_finds_the_extenders_of_a_second_scheduler_too():
    cures = [kind.fix for kind in KINDS.values() if "gpushare-extender" in kind.fix]
    assert len(cures) > 2
    assert [each for each in cures if "gpushare-scheduler" not in each] == []


@pytest.mark.parametrize("name", sorted(BREAKS))
def test_what_is_broken_is_found_and_nothing_else(name):
    found = look(BREAKS[name]())
    # What else a silent extender would have said is not checked.
    besides = {"NotChecked"} if name == "ExtenderSilent" else set()
    assert {each.kind.name for each in found} == {name} | besides
    for each in found:
        assert each.about
        assert each.found
        assert each.kind.why
        assert "{" not in each.fix


@pytest.mark.parametrize(
    ("limits", "scheduler", "said"),
    [
        ({"aliyun.com/gpu-memory": "8"}, "default-scheduler", "did you mean aliyun.com/gpu-mem?"),
        ({"nvidia.com/gpumem": "8192"}, "gpushare-scheduler", "is HAMi's, in MiB"),
        ({"nvidia.com/gpumem": "8192"}, "hami-scheduler", ""),
        ({"nvidia.com/gpu": "1"}, "default-scheduler", ""),
        ({"cpu": "1", "example.com/fpga": "1"}, "default-scheduler", ""),
    ],
)
def test_a_resource_that_no_node_offers_is_told_with_the_right_name(limits, scheduler, said):
    offers = with_status("whole", {"nvidia.com/gpu": 2}, {"nvidia.com/gpu": 2})
    whole = annotated(without_inventory(offers), {}, labels={})
    facts = with_pods(requesting(limits, scheduler=scheduler))
    found = [
        each for each in look(replace(facts, nodes=(*facts.nodes, whole))) if "asks" in each.about
    ]
    assert [each.kind.name for each in found] == (["MistakenResource"] if said else [])
    assert all(said in each.found for each in found)


def test_a_plugin_that_has_not_started_is_one_finding():
    made = own("gpushare-deviceplugin", "n1", is_ready=False)
    pending = msgspec.structs.replace(
        made, status=msgspec.structs.replace(made.status, phase="Pending")
    )
    bare = without_inventory(with_status("n1", {}, {RESOURCE_MEMORY: "0"}))
    nodes = tuple(bare if each.name == "n1" else each for each in well().nodes)
    found = look(replace(with_pods(pending, without=PLUGIN), nodes=nodes))
    assert [each.kind.name for each in found if each.about.endswith("n1")] == ["PluginNotReady"]


def test_a_service_whose_node_port_nobody_asks_takes_no_calls():
    assert look(well(node_ports={"team/web": frozenset({32766, 29766})})) == []
    elsewhere = scheduler(urlprefix="https://10.0.0.5:32766/gpushare-scheduler")
    names = {each.kind.name for each in look(well(schedulers={SCHEDULER: elsewhere}))}
    assert "ExtenderPortIsNodePort" not in names


UNKNOWN = Unknown("you lack the right to do that", lacks_right=True)


WELL = well()
# What these are about takes two facts to see.
DEPENDS = {
    "DriverRootDiffers",
    "ExtenderNotBeside",
    "ExtenderNeverAsked",
    "GateUnprotected",
    "NoLeader",
    "NoNodeShared",
    "NvidiaRuntimeIsDefault",
    "NvidiaRuntimeUnreachable",
    "PluginNewer",
    "PluginWithoutDriver",
    "PodOfAnotherScheduler",
    "PodsNotGated",
    "PolicyMissing",
    "QuotaInQueue",
    "RuntimeClassMissing",
    "SchedulerNotListed",
    "SecondSchedulerVersion",
    "UnitsMixed",
    "VersionSkew",
}
UNKNOWNS: dict[str, Any] = {
    "server": UNKNOWN,
    "plugins": {PLUGIN: UNKNOWN},
    "extenders": {EXTENDER: UNKNOWN},
    "election": UNKNOWN,
    "memory_unit": UNKNOWN,
    "schedulers": {SCHEDULER: UNKNOWN},
    "policies": UNKNOWN,
    "policy_bindings": UNKNOWN,
    "permissions": {Permission("gpushare-extender", "list", "pods"): UNKNOWN},
    "quotas": UNKNOWN,
    "runtime_classes": UNKNOWN,
    "has_namespace": UNKNOWN,
    "workloads": UNKNOWN,
    "operators": UNKNOWN,
    "warned": UNKNOWN,
    "webhooks": UNKNOWN,
    "queues": UNKNOWN,
    "gating": UNKNOWN,
    "gates": UNKNOWN,
    "preempts": UNKNOWN,
    "placement": UNKNOWN,
    "scheduler_names": UNKNOWN,
    "profile_rules": UNKNOWN,
}


@given(st.sets(st.sampled_from(sorted(UNKNOWNS))), st.sampled_from(sorted(BREAKS)))
def test_what_is_known_is_found_whatever_else_is_not(names, broken):
    before = BREAKS[broken]()
    # What was broken stays known.
    kept = {name: UNKNOWNS[name] for name in names if getattr(before, name) == getattr(WELL, name)}
    found = {each.kind.name for each in look(replace(before, **kept))}
    assert found <= {broken, "NotChecked"}
    if broken not in DEPENDS:
        assert broken in found


# What else is unknown is told only where it matters.
TOLD = UNKNOWNS.keys() - {"has_namespace", "operators", "warned", "webhooks", "gating", "gates"}


@pytest.mark.parametrize(("fact", "value"), [(name, UNKNOWNS[name]) for name in sorted(TOLD)])
def test_what_cannot_be_known_is_told_as_not_checked_and_as_nothing_else(fact, value):
    found = look(well(**{fact: value}))
    assert {each.kind for each in found} == {NOT_CHECKED}
    assert any("lack" in each.found for each in found)
    assert NOT_CHECKED.severity is Severity.UNCHECKED


@pytest.mark.parametrize(
    ("changes", "about"),
    [
        ({"filterVerb": ""}, "filterVerb"),
        ({"bindVerb": ""}, "bindVerb"),
        ({"managedResources": []}, "managedResources"),
        ({"managedResources": [{"name": RESOURCE_MEMORY}]}, "managedResources"),
        ({"prioritizeVerb": None}, "prioritizeVerb"),
        ({"preemptVerb": ""}, "preemptVerb"),
        ({"nodeCacheCapable": False}, "nodeCacheCapable"),
        ({"httpTimeout": "900ms"}, "httpTimeout"),
        ({"weight": 0}, "weight"),
    ],
)
def test_each_setting_of_the_extender_that_is_otherwise_is_named(changes, about):
    (found,) = look(well(schedulers={SCHEDULER: scheduler(**changes)}))
    assert found.about == f"{SCHEDULER}: {about}"


@pytest.mark.parametrize(
    ("changes", "about"),
    [
        ({"percentageOfNodesToScore": 0}, "percentageOfNodesToScore"),
        ({"profiles": [{"percentageOfNodesToScore": 50}]}, "percentageOfNodesToScore"),
        (
            {"percentageOfNodesToScore": 100, "profiles": [{"percentageOfNodesToScore": 0}]},
            "percentageOfNodesToScore",
        ),
        ({"clientConnection": {"qps": 50, "burst": 100}}, "clientConnection.qps"),
        ({"clientConnection": {"qps": 0}}, "clientConnection.qps"),
    ],
)
def test_a_setting_beside_the_extender_is_named_too(changes, about):
    (found,) = look(well(schedulers={SCHEDULER: configured(**plain(changes))}))
    assert found.about == f"{SCHEDULER}: {about}"


@pytest.mark.parametrize(
    "changes",
    [
        {"profiles": []},
        {"profiles": [{"percentageOfNodesToScore": None}]},
        {"profiles": [{"percentageOfNodesToScore": 100}], "percentageOfNodesToScore": 5},
        {"clientConnection": {"qps": -1}},
    ],
)
def test_a_setting_that_kubernetes_takes_for_the_wanted_one_is_well(changes):
    assert look(well(schedulers={SCHEDULER: configured(**plain(changes))})) == []


@pytest.mark.parametrize("timeout", [None, "", "0s", "5s", "1m0s"])
def test_a_timeout_of_nothing_is_kubernetes_default_of_five_seconds(timeout):
    assert look(well(schedulers={SCHEDULER: scheduler(httpTimeout=timeout)})) == []


def test_the_internal_form_of_a_configuration_is_read_as_the_public_one():
    internal = {"Extenders": [{"URLPrefix": "http://127.0.0.1:29766/gpushare-scheduler"}]}
    assert plain(internal)["extenders"][0]["urlprefix"].endswith("/gpushare-scheduler")


def test_each_profile_that_the_extender_does_not_list_is_named():
    names = ("default-scheduler", "batch", "other")
    profiles = configured(profiles=[{"schedulername": name} for name in names])
    facts = well(
        schedulers={SCHEDULER: profiles, "theirs": configured(extenders=[])},
        scheduler_names=frozenset({"default-scheduler", "other"}),
    )
    (found,) = [each for each in look(facts) if each.kind.name == "SchedulerNotListed"]
    assert found.about.startswith("profile batch of")
    assert "schedulerNames" in found.fix


def test_beside_a_second_kube_scheduler_the_first_needs_no_extender():
    second = configured(profiles=[{"schedulername": "gpushare-scheduler"}])
    facts = well(
        schedulers={SCHEDULER: configured(extenders=[]), "second": second},
        pods=tuple(each for each in well().pods if each.metadata.name != "waits"),
    )
    assert look(facts) == []
    waits = pod("waits", on=None)
    (found,) = look(well(schedulers=facts.schedulers, pods=(*facts.pods, waits)))
    assert found.kind.name == "PodOfAnotherScheduler"
    assert "gpushare-scheduler" in found.fix


@pytest.mark.parametrize(
    "facts",
    [
        tainted(GPU_TAINT, spared=1),
        tainted(GPU_TAINT, tolerates=Toleration("nvidia.com/gpu", "Exists")),
        tainted(Taint("nvidia.com/gpu", "PreferNoSchedule")),
        tainted(Taint("node.kubernetes.io/unschedulable", "NoSchedule")),
        tainted(Taint("gpushare.aliyun.com/not-ready", "NoSchedule")),
    ],
)
def test_taints_are_well_while_a_pod_can_be_placed_or_only_states_keep_it_off(facts):
    assert look(facts) == []


def test_the_taint_that_no_pod_tolerates_is_named_with_its_effect():
    (found,) = look(tainted(Taint("other", "NoExecute"), tolerates=Toleration("o", "Exists")))
    assert (
        "none of 2 Pending pods with aliyun.com/gpu-mem tolerates: other:NoExecute" in found.found
    )
    assert "tolerat" in found.fix


def test_a_gpu_count_of_another_number_of_cards_is_seen():
    (found,) = look(with_node(with_status("n1", {RESOURCE_COUNT: "3"}, {})))
    assert found.kind.name == "InventoryDiffers"


def test_a_pod_that_was_refused_at_admission_without_a_decision_is_seen():
    refused = pod("refused", annotations={})
    status = msgspec.structs.replace(
        refused.status, phase="Failed", reason="UnexpectedAdmissionError"
    )
    (found,) = look(with_pods(msgspec.structs.replace(refused, status=status)))
    assert found.kind.name == "PodWithoutDecision"


def test_the_reasons_of_a_plugin_that_is_not_ready_are_told():
    facts = with_pods(own("gpushare-deviceplugin", "n1", is_ready=False), without=PLUGIN)
    plugins = {**facts.plugins, PLUGIN: program("", "NVML has not answered yet")}
    (found,) = look(well(pods=facts.pods, plugins=plugins))
    assert "NVML has not answered yet" in found.found


@pytest.mark.parametrize(
    ("setups", "is_found"),
    [
        ([("runtime", ["nvidia"])] * 2, True),
        ([("runtime", ["nvidia"]), ("cdi", ["nvidia"])], False),
        ([("runtime", ["", "nvidia"])] * 2, False),
    ],
)
def test_a_pod_that_waits_is_named_only_if_no_node_would_take_it(setups, is_found):
    nodes = [
        injected(f"n{place}", kind, *classes) for place, (kind, classes) in enumerate(setups, 1)
    ]
    pods = tuple(each for each in well().pods if each.metadata.name != "train")
    found = look(well(nodes=(control_plane(), *nodes), pods=pods))
    assert [each.about for each in found] == (["default/waits"] if is_found else [])


def green(facts: Facts) -> set[str]:
    return {each.check.title for each in examine(facts, CHECKS) if each.outcome is Outcome.OK}


@pytest.mark.parametrize("election", [None, WELL.election])
def test_a_check_of_extenders_that_were_not_asked_is_not_green(election):
    asked = {
        "extenders are ready and answer",
        "there is exactly one leader",
        "versions are compatible",
    }
    assert asked <= green(WELL)
    lacking = well(extenders={EXTENDER: UNKNOWN}, election=election)
    assert not asked & green(lacking)
    assert {each.kind for each in look(lacking)} == {NOT_CHECKED}


@pytest.mark.parametrize("election", [None, WELL.election])
def test_beside_a_silent_extender_nothing_that_it_would_say_is_green(election):
    silent = {**EXTENDERS, "gpushare-extender-cp2": Unknown("it does not answer")}
    titles = {
        "extenders are ready and answer",
        "there is exactly one leader",
        "versions are compatible",
        "extenders report no problems",
    }
    assert not titles & green(well(extenders=silent, election=election))
    found = {each.kind.name for each in look(well(extenders=silent, election=election))}
    assert found == {"ExtenderSilent", "NotChecked"}


def test_a_leader_that_does_not_answer_is_not_missed():
    extenders = {EXTENDER: program(), "gpushare-extender-cp2": Unknown("it does not answer")}
    found = {each.kind.name for each in look(well(extenders=extenders, election=None))}
    assert "NoLeader" not in found


@pytest.mark.parametrize(
    ("webhook", "outcome"),
    [
        (Webhook(authority("new") + authority("old"), authority("new")), Outcome.OK),
        (Webhook(authority("new"), authority("new").replace(b"\n", b"\r\n")), Outcome.OK),
        (Webhook(b"", authority("new")), Outcome.PROBLEM),
        (UNKNOWN, Outcome.UNCHECKED),
        (None, Outcome.NOTHING),
    ],
)
def test_a_webhook_may_trust_more_than_the_extenders_authority_and_not_less(webhook, outcome):
    facts = second_scheduler("registry.k8s.io/kube-scheduler:v1.34.4")
    known = webhook if isinstance(webhook, Unknown) else {"own": webhook} if webhook else {}
    results = examine(replace(facts, webhooks=known), CHECKS)
    (found,) = [each for each in results if each.check.title == "the webhooks trust the extenders"]
    assert found.outcome is outcome


@pytest.mark.parametrize(("seconds", "is_found"), [(5, False), (3600, True)])
def test_with_gates_off_a_pod_that_stays_gated_is_found(seconds, is_found):
    facts = replace(with_gates(), pods=with_pods(gated(seconds)).pods, gates=False)
    assert [each.kind.name for each in look(facts)] == ["PodsStayGated"] * is_found


def test_a_device_list_that_nobody_states_is_not_checked():
    title = "device lists are short enough"
    unseen = replace(
        with_node(without_inventory(node("n1"))), plugins={**WELL.plugins, PLUGIN: UNKNOWN}
    )
    assert title in green(WELL)
    assert title not in green(unseen)


@pytest.mark.parametrize("version", ["", "unknown"])
def test_a_kubelet_without_a_version_is_not_checked(version):
    found = look(with_node(node("n1", kubelet=version)))
    assert [(each.kind, each.about) for each in found] == [(NOT_CHECKED, "kubelets of n1")]


@pytest.mark.parametrize(("may_patch", "found"), [(True, {"PolicyMissing"}), (False, set())])
def test_the_policy_of_the_extenders_patches_is_missed_where_it_may_patch(may_patch, found):
    facts = well(
        policies=WELL.policies - {"gpushare-extender-pods"},
        permissions={**WELL.permissions, PATCHES: may_patch},
    )
    assert {each.kind.name for each in look(facts)} == found
