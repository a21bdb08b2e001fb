"""What of gpushare is in a cluster comes first, and nothing is well that is not there."""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from gpushare.contract import LABEL_CARD_COUNT, RESOURCE_MEMORY
from gpusharectl.doctor import show
from gpusharectl.doctor.checks.access import POLICIES
from gpusharectl.doctor.checks.findings import DoctorFinding, Outcome, Severity, examine
from gpusharectl.doctor.command import CHECKS
from gpusharectl.doctor.facts.cluster import (
    Facts,
    OperatorSettings,
    Unknown,
    Warned,
    Webhook,
    Workload,
)
from gpusharectl.doctor.facts.gpu_nodes import SHOWN, gpu_nodes, listed
from gpusharectl.doctor.facts.seen import SeenPod, SeenState, SeenTerminated
from gpusharectl.doctor.facts.subjects import NOT_INSTALLED
from tests.builders import annotated, legacy_node
from tests.unit.gpusharectl.doctor.checks.test_findings import (
    BREAKS,
    UNKNOWNS,
    certificate,
    gated,
    limited,
    with_gates,
    with_preemption,
)
from tests.unit.gpusharectl.doctor.clusters import (
    NOW,
    SYSTEM,
    bare,
    control_plane,
    eks,
    labelled,
    node,
    of_daemon_set,
    own,
    plain_node,
    pod,
    waiting,
    well,
    with_pods,
)

LACKING = Unknown("you lack the right to do that", lacks_right=True)
MISSING = 'secret "gpushare-extender-tls" not found'
EMPTY = Facts("0.1.0", NOW, SYSTEM)


def findings(facts: Facts, *kinds: str) -> list[DoctorFinding]:
    found = [each for result in examine(facts, CHECKS) for each in result.findings]
    return [each for each in found if not kinds or each.kind.name in kinds]


def outcomes(facts: Facts) -> dict[str, Outcome]:
    return {result.check.title: result.outcome for result in examine(facts, CHECKS)}


@pytest.fixture
def said(capsys):
    def render(facts: Facts) -> list[str]:
        show.show(examine(facts, CHECKS), Console(width=80, no_color=True))
        return capsys.readouterr().out.splitlines()

    return render


def test_a_cluster_without_gpushare_is_told_so_first_with_its_gpu_nodes_and_what_to_do(said):
    text = said(eks())
    assert text[0] == (
        "  ✗ problem  gpushare is not installed here: no namespace gpushare-system, no node "
        "labelled gpushare=true"
    )
    assert text[1:5] == [
        "      nodes with GPUs: 3 (12 GPUs)",
        "        ip-10-0-0-0: 4 x Tesla-T4",
        "        ip-10-0-0-1: 4 x Tesla-T4",
        "        ip-10-0-0-2: 4 x Tesla-T4",
    ]
    fix = next(line for line in text if "fix:" in line)
    assert "install it" in fix
    assert "kubectl label node ip-10-0-0-0 ip-10-0-0-1 ip-10-0-0-2 gpushare=true" in fix
    assert [line for line in text if "✓" in line] == []
    reasons = {line.partition(" (")[0] for line in text if "nothing to check:" in line}
    assert reasons == {"  - nothing to check: gpushare is not installed here"}
    assert text[-1].endswith("0 ok, 55 nothing to check, 1 with findings (1 problem).")


BARE: dict[str, Callable[[], Facts]] = {
    "nothing": lambda: EMPTY,
    "eks": eks,
    "labelled": lambda: bare(labelled(plain_node("n1", 4), {"gpushare": "true"})),
    "namespace": lambda: eks(has_namespace=True),
    "without rights": lambda: eks(
        has_namespace=LACKING, workloads=LACKING, operators=LACKING, warned=LACKING
    ),
}


@pytest.mark.parametrize("name", BARE)
def test_where_gpushare_is_not_installed_no_check_of_gpushare_is_ok(name):
    facts = BARE[name]()
    (found,) = findings(facts, "NotInstalled")
    assert found.about == NOT_INSTALLED
    # NVIDIA's software and kubelets are checked on nodes that are already labelled.
    ok = {title for title, outcome in outcomes(facts).items() if outcome is Outcome.OK}
    assert not ok or name == "labelled"


def test_on_an_empty_cluster_each_check_says_why_it_has_nothing_to_check():
    for result in examine(EMPTY, CHECKS):
        assert result.outcome is not Outcome.OK
        assert result.nothing or result.findings
        assert not (result.nothing and result.findings)


def another() -> list[Facts]:
    """Clusters that are well, which together have what each check is about."""
    second = own(
        "gpushare-scheduler", "n1", images={"kube-scheduler": "registry.example/s:v1.34.0@sha256:a"}
    )
    operator = OperatorSettings("policy", uses_device_plugin=False, uses_cdi=True)
    dra = of_daemon_set(
        "dra", "elsewhere", "gpus", **{"nvidia-dra-driver-gpu-component": "kubelet-plugin"}
    )
    certified = certificate(NOW.replace(year=2027) - NOW)
    return [
        well(),
        replace(with_pods(second, dra), webhooks={"own": Webhook(b"", b"")}),
        well(operators=(operator,)),
        replace(with_gates(), queues=frozenset({"other"}), pods=with_pods(gated()).pods),
        with_preemption(),
        limited("16"),
        replace(certified, extenders=certified.extenders),
    ]


def test_every_check_is_ok_in_a_cluster_that_has_what_it_is_about():
    seen: dict[str, set[Outcome]] = {}
    for facts in another():
        for title, outcome in outcomes(facts).items():
            seen.setdefault(title, set()).add(outcome)
    assert {title for title, found in seen.items() if Outcome.OK not in found} == set()
    assert set().union(*seen.values()) == {Outcome.OK, Outcome.NOTHING}


@given(st.sets(st.sampled_from(sorted(UNKNOWNS))), st.sampled_from(sorted(BREAKS)))
def test_a_check_with_nothing_to_check_hides_no_finding(names, broken):
    facts = replace(BREAKS[broken](), **{name: UNKNOWNS[name] for name in names})
    for check in CHECKS:
        nothing = check.nothing(facts)
        if nothing and nothing != NOT_INSTALLED:
            severities = {found.kind.severity for found in check.run(facts)}
            assert severities <= {Severity.UNCHECKED}, check.title


def test_the_outcomes_of_all_checks_are_counted_in_json():
    found = show.as_builtins(examine(eks(), CHECKS))
    assert found["counts"] == {
        "ok": 0,
        "nothing to check": len(CHECKS) - 1,
        "not checked": 0,
        "warning": 0,
        "problem": 1,
    }
    assert found["ok"] is False
    first, second = found["checks"][:2]
    assert (first["outcome"], second["outcome"]) == ("problem", "nothing to check")
    assert second["nothingToCheck"] == NOT_INSTALLED
    assert first["findings"][0]["details"][1] == "  ip-10-0-0-0: 4 x Tesla-T4"


@pytest.mark.parametrize(
    ("facts", "text", "cure"),
    [
        (eks(has_namespace=True), "neither device plugin nor extender in namespace", "install it"),
        (eks(has_namespace=LACKING), "no pod of gpushare in namespace", "install it"),
        (BARE["labelled"](), "1 node labelled gpushare=true", "install it"),
        (
            bare(legacy_node("old", 16, 2)),
            "1 node with Aliyun gpushare",
            "migrate: https://",
        ),
        (
            bare(plain_node("n1"), policies=frozenset(POLICIES[:2])),
            "left over: 2 admission policies",
            "gpushare uninstall --dry-run",
        ),
        (
            bare(node("n1", 16, is_shared=False, unhealthy=[0])),
            "the inventory of 1 node",
            "gpushare uninstall --dry-run",
        ),
        (
            eks(
                pods=(
                    msgspec.structs.replace(
                        own("gpushare-extender", "cp1"),
                        metadata=msgspec.structs.replace(
                            own("gpushare-extender", "cp1").metadata, namespace="elsewhere"
                        ),
                    ),
                )
            ),
            "pods of it in namespace elsewhere",
            "--system-namespace=elsewhere",
        ),
    ],
)
def test_what_is_there_of_it_is_told_with_the_next_command(facts, text, cure):
    (found,) = findings(facts, "NotInstalled")
    assert text in found.found
    assert cure in found.fix
    # With the base, Aliyun gpushare could not decide any more; a label is not set twice.
    installs = cure != "migrate: https://"
    assert ("install it" in found.fix) == installs
    is_labelled = "no node labelled" not in found.found
    assert ("kubectl label" in found.fix) == (installs and not is_labelled)


def test_what_a_kubelet_leaves_of_an_uninstalled_plugin_is_not_another_plugin():
    left = plain_node("n1")
    status = msgspec.structs.replace(left.status, capacity={RESOURCE_MEMORY: "8"}, allocatable={})
    (found,) = findings(bare(msgspec.structs.replace(left, status=status)))
    assert found.kind.name == "NotInstalled"
    assert "Aliyun" not in found.found


def parts(*names: str, pods: tuple[SeenPod, ...] = (), **facts: object) -> Facts:
    """A cluster with these DaemonSets or Deployments, whose pods are not there yet."""
    workloads = {name: Workload("DaemonSet", 0) for name in names}
    nodes = (control_plane(), labelled(plain_node("n1", 2), {"gpushare": "true"}))
    return bare(*nodes, **{"workloads": workloads, "pods": pods, "has_namespace": True, **facts})


@pytest.mark.parametrize(
    ("facts", "kind", "text", "cure"),
    [
        (parts("gpushare-extender"), "PartMissing", "no device plugin", "apply"),
        (parts("gpushare-deviceplugin"), "PartMissing", "no extender", "apply"),
        (
            parts("gpushare-deviceplugin", "gpushare-extender"),
            "ExtenderMissing",
            "DaemonSet gpushare-extender selects no node",
            "nodeSelector",
        ),
        (
            bare(plain_node("n1", 2), workloads={"gpushare-deviceplugin": Workload("DaemonSet")}),
            "NoNodeShared",
            "no node is labelled gpushare=true",
            "kubectl label node n1 gpushare=true",
        ),
        (
            bare(plain_node("n1"), workloads={"gpushare-deviceplugin": Workload("DaemonSet")}),
            "NoNodeShared",
            "no node is labelled gpushare=true",
            "kubectl label node NODE gpushare=true",
        ),
        (
            parts(
                "gpushare-deviceplugin",
                warned=(
                    Warned(
                        "uid",
                        "DaemonSet",
                        "gpushare-deviceplugin",
                        "FailedCreate",
                        'pods "x" is forbidden: RuntimeClass "nvidia" not found',
                    ),
                ),
            ),
            "PluginMissing",
            'RuntimeClass "nvidia" not found',
            "describe daemonset",
        ),
    ],
)
def test_of_an_installation_in_part_what_is_missing_is_told(facts, kind, text, cure):
    (found,) = findings(facts, kind)
    assert text in found.found
    assert cure in found.fix
    assert findings(facts, "NotInstalled") == []


def crashed(code: int, message: str = "") -> SeenState:
    return SeenState(terminated=SeenTerminated(exit_code=code, reason="Error", message=message))


def plugin(*statuses, name: str = "gpushare-deviceplugin") -> Facts:
    return with_pods(own(name, "n1", *statuses), without=f"{name}-n1")


@pytest.mark.parametrize(
    ("facts", "kind", "text", "cure"),
    [
        (
            plugin(waiting("ImagePullBackOff", 'Back-off pulling image "gpushare:0.1.0"')),
            "ImageNotPulled",
            "image gpushare:0.1.0: ImagePullBackOff: Back-off",
            "images: in your kustomization, or image.repository",
        ),
        (
            plugin(waiting("ErrImagePull", f"{'failed to pull ' * 40}: no such host")),
            "ImageNotPulled",
            ": no such host",
            "push the image to a registry",
        ),
        (
            plugin(waiting("ErrImageNeverPull")),
            "ImageNotPulled",
            "ErrImageNeverPull",
            "push the image to a registry",
        ),
        (
            plugin(waiting("CreateContainerConfigError", MISSING)),
            "ProgramNotCreated",
            MISSING,
            "gpushare certificates",
        ),
        (
            plugin(waiting("RunContainerError", "no such device")),
            "ProgramNotCreated",
            "no such device",
            "kubectl -n gpushare-system describe pod gpushare-deviceplugin-n1",
        ),
        (
            plugin(waiting("CrashLoopBackOff", last=crashed(2, "memoryUnit is 'GB'"))),
            "ProgramCrashes",
            "it ended with exit code 2: memoryUnit is 'GB'",
            "logs gpushare-deviceplugin-n1 -c main --previous",
        ),
    ],
)
def test_why_a_program_does_not_start_is_told_with_its_cure_and_nothing_else(
    facts, kind, text, cure
):
    (found,) = findings(facts)
    assert found.kind.name == kind
    assert text in found.found
    assert cure in found.fix


@pytest.mark.parametrize(
    ("reason", "message", "cure"),
    [
        ("FailedMount", MISSING, "gpushare certificates"),
        ("FailedMount", "hostPath type check failed: .../kubelet.crt is not a file", "signed"),
        ("FailedCreatePodSandBox", 'no runtime for "nvidia" is configured', "container toolkit"),
    ],
)
def test_an_event_tells_why_no_container_of_a_program_is_created(reason, message, cure):
    facts = plugin(waiting("ContainerCreating"))
    about = "gpushare-deviceplugin-n1"
    older = Warned(about, "Pod", about, reason, "of before")
    newest = Warned(about, "Pod", about, reason, message)
    (found,) = findings(replace(facts, warned=(older, newest)))
    assert found.kind.name == "ProgramNotCreated"
    assert f"{reason}: {message}" in found.found
    assert cure in found.fix
    unknown = findings(replace(facts, warned=LACKING), "NotChecked")
    assert [each.found for each in unknown] == [LACKING.why]


def test_a_message_is_shown_in_one_line_of_bounded_length():
    (found,) = findings(plugin(waiting("ErrImagePull", "x\n" * 10**5)))
    assert len(found.found) < 500
    assert "\n" not in found.found


@pytest.mark.parametrize(
    ("written", "server", "found"),
    [
        ("registry.k8s.io/kube-scheduler:v1.34.4", "v1.34.9", []),
        ("registry.k8s.io/kube-scheduler:v1.34.4", "v1.33.2-eks-1234", ["v1.33.2"]),
        ("host:5000/kube-scheduler:v1.35.0", "v1.33.2-gke.100", ["v1.33.2"]),
        ("kube-scheduler:1.33.0@sha256:abc", "v1.33.2+k3s1", []),
    ],
)
def test_a_second_scheduler_of_another_minor_version_is_told_the_clusters(written, server, found):
    there = own("gpushare-scheduler", "n1", images={"extender": "x:1", "kube-scheduler": written})
    facts = replace(with_pods(there), server=server)
    told = findings(facts, "SecondSchedulerVersion")
    assert [each.fix.split()[2].rstrip(":") for each in told] == found
    assert all(server in each.found for each in told)


@pytest.mark.parametrize("written", ["", "kube-scheduler@sha256:abc", "host:5000/kube-scheduler"])
def test_a_second_scheduler_without_a_version_is_not_checked(written):
    there = own("gpushare-scheduler", "n1", images={"kube-scheduler": written})
    (found,) = findings(with_pods(there), "NotChecked", "SecondSchedulerVersion")
    assert "no version in its tag" in found.found


@pytest.mark.parametrize(
    ("labels", "gpus", "text"),
    [
        ({}, 4, "n1: 4 GPUs"),
        ({}, 1, "n1: 1 GPU"),
        ({"nvidia.com/gpu.product": "A100", "nvidia.com/gpu.count": "2"}, 8, "n1: 2 x A100"),
        ({"nvidia.com/gpu.count": "many"}, 3, "n1: 3 GPUs"),
        ({"feature.node.kubernetes.io/pci-10de.present": "true"}, 0, "n1: GPUs"),
        (
            {
                "cloud.google.com/gke-accelerator": "nvidia-l4",
                "cloud.google.com/gke-accelerator-count": "2",
            },
            0,
            "n1: 2 x nvidia-l4",
        ),
        (
            {
                "karpenter.k8s.aws/instance-gpu-manufacturer": "nvidia",
                "karpenter.k8s.aws/instance-gpu-name": "t4",
                "karpenter.k8s.aws/instance-gpu-count": "1",
            },
            0,
            "n1: 1 x t4",
        ),
        ({"k8s.amazonaws.com/accelerator": "nvidia-tesla-v100"}, 0, "n1: nvidia-tesla-v100"),
        ({"kubernetes.azure.com/accelerator": "nvidia"}, 0, "n1: GPUs"),
    ],
)
def test_a_node_with_gpus_is_known_by_its_resources_or_a_label(labels, gpus, text):
    (found,) = gpu_nodes([labelled(plain_node("n1", gpus), labels), plain_node("n2")])
    assert found.text == text


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ({}, "n1: GPUs, offers nvidia.com/mig-1g.5gb, nvidia.com/mig-3g.20gb"),
        (
            {"nvidia.com/gpu.product": "A100", "nvidia.com/gpu.count": "2"},
            "n1: 2 x A100, offers nvidia.com/mig-1g.5gb, nvidia.com/mig-3g.20gb",
        ),
    ],
)
def test_a_node_that_offers_mig_devices_is_named_with_them(labels, text):
    devices = {"nvidia.com/mig-3g.20gb": 1, "nvidia.com/mig-1g.5gb": 4, "nvidia.com/mig-7g": 0}
    made = plain_node("n1")
    status = msgspec.structs.replace(made.status, capacity={**made.capacity, **devices})
    (found,) = gpu_nodes([labelled(msgspec.structs.replace(made, status=status), labels)])
    assert found.text == text


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {
            "karpenter.k8s.aws/instance-gpu-manufacturer": "amd",
            "karpenter.k8s.aws/instance-gpu-name": "radeon-pro-v520",
        },
    ],
)
def test_other_nodes_have_no_gpus_of_nvidia(labels):
    assert gpu_nodes([labelled(plain_node("n1"), labels)]) == []


@pytest.mark.parametrize(
    ("labels", "annotations"),
    [
        ({}, {"hami.io/node-nvidia-register": "[]"}),
        ({"cloud.google.com/gke-gpu-sharing-strategy": "time-sharing"}, {}),
    ],
)
def test_shares_of_other_systems_are_not_taken_for_gpus(labels, annotations):
    found = gpu_nodes([annotated(labelled(plain_node("n1", 20), labels), annotations)])
    head, line = listed([*found, *gpu_nodes([plain_node("n2", 2)])])[:2]
    assert head == "nodes with GPUs: 2 (at least 2 GPUs)"
    assert line == "  n1: GPUs"


@given(st.integers(0, 1000))
def test_the_list_of_nodes_is_bounded_and_says_how_many_there_are(count):
    lines = listed(gpu_nodes([plain_node(f"n{each:04}", 2) for each in range(count)]))
    assert len(lines) <= SHOWN + 2
    if count:
        assert lines[0] == f"nodes with GPUs: {count} ({2 * count} GPUs)"
    assert (f"  ... and {count - SHOWN} more" in lines) == (count > SHOWN)


def test_requests_for_memory_are_still_checked_where_gpushare_is_not_installed():
    facts = eks(pods=(pod("bytes", "8Gi", on=None),))
    (found,) = findings(facts, "PodRefused")
    assert RESOURCE_MEMORY in found.found


def test_a_refused_pod_is_not_told_to_write_what_it_has():
    uneven = pod("uneven", 8, on=None, labels={LABEL_CARD_COUNT: "3"})
    (found,) = findings(eks(pods=(uneven,)), "PodRefused")
    assert "cannot be split in 3 equal parts" in found.found
    assert found.fix == "correct the pod template as the text says"
