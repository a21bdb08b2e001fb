"""Check that NVIDIA's own software leaves shared GPUs to gpushare (pure).

Names are those of NVIDIA's device plugin 0.20, GPU Operator 26.7 and DRA driver 26.4.
"""

from collections.abc import Collection, Iterator
from typing import Final

from gpushare.objects.model import Node
from gpushare.text.manual import manual
from gpusharectl.doctor.checks.findings import Check, DoctorFinding, problem, unchecked, warning
from gpusharectl.doctor.facts import subjects
from gpusharectl.doctor.facts.cluster import (
    PLUGIN,
    Facts,
    OperatorSettings,
    Unknown,
    Workload,
)
from gpusharectl.doctor.facts.gpu_nodes import WHOLE_GPUS, mig_devices
from gpusharectl.doctor.facts.seen import SeenPod
from gpusharectl.doctor.facts.shared_nodes import (
    inventories,
    shared_nodes,
    units_of,
)

_GROUP: Final = "NVIDIA's software"

# Names of containers. The second is of NVIDIA's chart and manifest, the third GKE's.
_PLUGINS: Final = {"nvidia-device-plugin", "nvidia-device-plugin-ctr", "nvidia-gpu-device-plugin"}
_MPS: Final = {"mps-control-daemon-ctr"}
_DRA: Final = {"gpus"}
_DRA_LABEL: Final = ("nvidia-dra-driver-gpu-component", "kubelet-plugin")
_OPERATOR_LABEL: Final = ("app", "nvidia-device-plugin-daemonset")
_DEPLOY: Final = "nvidia.com/gpu.deploy."
_MIG_CONFIG: Final = "nvidia.com/mig.config"
_SHARING: Final = "nvidia.com/gpu.sharing-strategy"
_DRIVER_ROOT: Final = "/run/nvidia/driver"
_HAMI: Final = "hami.io/node-nvidia-register"

WHOLE_CARD_PLUGIN = problem(
    "WholeCardPlugin",
    "two plugins offer the same GPUs: a pod may get a whole GPU that others share",
    "{cure}",
)
MIG_ON_SHARED_NODE = warning(
    "MigOnSharedNode",
    "a GPU in MIG mode is not shared by memory, and its mode cannot change while gpushare's plugin "
    "has it open",
    "choose one for the node: kubectl label node {about} nvidia.com/mig.config=all-disabled "
    "--overwrite, or kubectl label node {about} gpushare-",
)
MPS_ON_SHARED_NODE = problem(
    "MpsOnSharedNode",
    "the MPS daemon sets the GPUs to exclusive mode, so processes of shared pods cannot use them",
    "keep NVIDIA's device plugin and its MPS daemon off the node; with the GPU Operator: kubectl "
    "label node {about} nvidia.com/gpu.deploy.device-plugin=false --overwrite",
)
DRA_DRIVER = problem(
    "DraDriverOnSharedNode",
    "claims may get a whole GPU that others share",
    "keep its kubelet plugin off the node (its Helm value kubeletPlugin.affinity), or install it "
    "with resources.gpus.enabled=false",
)
WITHOUT_DRIVER = problem(
    "PluginWithoutDriver",
    "gpushare's plugin finds no driver under the default runtime, and offers nothing",
    "give the plugin the RuntimeClass nvidia (without the component default-runtime; "
    "plugin.runtimeClassName: nvidia)",
    page="platforms/gpu-operator.md",
)
DEFAULT_RUNTIME = warning(
    "NvidiaRuntimeIsDefault",
    "pods without a RuntimeClass run under NVIDIA's runtime, and gpushare does not expect that: "
    "it places pods without one nowhere, and their other containers may see every GPU",
    "use the component default-runtime (plugin.runtimeClassName: ''), or set cdi.enabled=true in "
    "the GPU Operator",
    page="platforms/gpu-operator.md",
)
DRIVER_ROOT_DIFFERS = problem(
    "DriverRootDiffers",
    "the plugin mounts a library that is not there, or that of another driver",
    "set plugin.driverRoot, or the path in the component driver-root, to libnvidia-ml.so.1 below "
    "{root}",
)


def _shares_with_nobody(facts: Facts) -> Iterator[DoctorFinding]:
    plugins = _pods_by_node(facts, _PLUGINS)
    for node in shared_nodes(facts):
        whole = {each: units_of(node.capacity, each) for each in WHOLE_GPUS}
        offered = [f"{count} {name}" for name, count in whole.items() if count]
        pod = plugins.get(node.name)
        if pod is None and not offered:
            continue
        if not offered and mig_devices(node):
            continue  # it offers only MIG devices
        found = f"it also offers {', '.join(offered)}" if offered else "another plugin runs there"
        sharing = node.labels.get(_SHARING, "")
        found += (
            f", replicas by {sharing}" if offered and sharing in {"mps", "time-slicing"} else ""
        )
        found += f": pod {pod.key}" if pod is not None else ""
        yield WHOLE_CARD_PLUGIN.of(node.name, found, cure=_cure(facts, node, pod))


def _cure(facts: Facts, node: Node, pod: SeenPod | None) -> str:
    if pod is None and _HAMI in node.annotations:
        return (
            f"it is HAMi's: drain the node, then kubectl label node {node.name} gpu-, so that "
            f"HAMi's device plugin leaves; see {manual('migrate.md#from-hami')}"
        )
    key, value = _OPERATOR_LABEL
    is_operators = pod is not None and pod.labels.get(key) == value
    if not is_operators and not any(label.startswith(_DEPLOY) for label in node.labels):
        return (
            "keep NVIDIA's device plugin off the node, by its nodeAffinity or as "
            "the page of your platform says; the resource disappears five minutes later"
        )
    label = (
        f"kubectl label node {node.name} {_DEPLOY}device-plugin=false --overwrite; the operator's "
        "validator then fails there, which gpushare does not need; see "
        f"{manual('platforms/gpu-operator.md')}"
    )
    operators = () if isinstance(facts.operators, Unknown) else facts.operators
    if len(operators) != 1 or operators[0].uses_device_plugin is False:
        return label
    patch = '{"spec":{"devicePlugin":{"enabled":false}}}'
    every = f"kubectl patch clusterpolicy {operators[0].name} --type=merge -p '{patch}'"
    return f"if all GPU nodes are shared: {every}; else {label}"


def _is_not_partitioned(facts: Facts) -> Iterator[DoctorFinding]:
    daemons = _pods_by_node(facts, _MPS)
    for node in shared_nodes(facts):
        config = node.labels.get(_MIG_CONFIG, "")
        if config not in {"", "all-disabled"}:
            found = f"{_MIG_CONFIG}={config}: the GPU Operator's MIG manager partitions its GPUs"
            yield MIG_ON_SHARED_NODE.of(node.name, found)
        if node.name in daemons:
            found = f"NVIDIA's MPS daemon runs there: pod {daemons[node.name].key}"
            yield MPS_ON_SHARED_NODE.of(node.name, found)


def _claims_nothing(facts: Facts) -> Iterator[DoctorFinding]:
    pods = _dra_pods(facts)
    for node in shared_nodes(facts):
        if node.name in pods:
            found = f"NVIDIA's DRA driver offers its GPUs to claims: pod {pods[node.name].key}"
            yield DRA_DRIVER.of(node.name, found)


def _dra_pods(facts: Facts) -> dict[str, SeenPod]:
    key, value = _DRA_LABEL
    found = _pods_by_node(facts, _DRA)
    return {node: pod for node, pod in found.items() if pod.labels.get(key) == value}


def _no_dra_driver(facts: Facts) -> str:
    return subjects.shared(facts) or (
        "" if _dra_pods(facts) else "NVIDIA's DRA driver for GPUs does not run"
    )


def _pods_by_node(facts: Facts, containers: Collection[str]) -> dict[str, SeenPod]:
    """Return a DaemonSet's pod on each node that has one of these containers."""
    return {
        pod.node: pod
        for pod in facts.pods
        if pod.is_of_daemon_set
        and pod.node
        and not pod.is_terminal
        and not pod.metadata.deletion_timestamp
        and any(each.name in containers for each in pod.containers)
    }


def _operator_fits(facts: Facts) -> Iterator[DoctorFinding]:
    if isinstance(facts.operators, Unknown):
        yield unchecked("the GPU Operator's settings", facts.operators)
        return
    if isinstance(facts.workloads, Unknown):
        yield unchecked("the DaemonSet of the device plugin", facts.workloads)
        return
    plugin = facts.workloads.get(PLUGIN)
    if plugin is None:
        return
    for operator in facts.operators:
        yield from _runtime_fits(facts, operator, plugin)
        yield from _driver_fits(operator, plugin)


def _runtime_fits(
    facts: Facts, operator: OperatorSettings, plugin: Workload
) -> Iterator[DoctorFinding]:
    if operator.installs_toolkit is False or plugin.driver_library:
        return
    if operator.uses_cdi and not operator.is_default_runtime and not plugin.runtime_class:
        found = (
            "with cdi.enabled=true, the default from 25.10, the default runtime stays runc, and "
            "gpushare's plugin has no RuntimeClass"
        )
        yield WITHOUT_DRIVER.of(f"ClusterPolicy {operator.name}", found)
    is_default = operator.uses_cdi is False and operator.is_default_runtime is not False
    stated = inventories(shared_nodes(facts)).values()
    if is_default and plugin.runtime_class and not any("" in e.runtime_classes for e in stated):
        found = "with cdi.enabled=false, it makes NVIDIA's runtime the default runtime"
        yield DEFAULT_RUNTIME.of(f"ClusterPolicy {operator.name}", found)


def _driver_fits(operator: OperatorSettings, plugin: Workload) -> Iterator[DoctorFinding]:
    library = plugin.driver_library
    if not library or operator.installs_driver is None:
        return
    root = (operator.driver_root or _DRIVER_ROOT) if operator.installs_driver else "/"
    is_of_operator = library.startswith(f"{operator.driver_root or _DRIVER_ROOT}/")
    if is_of_operator != operator.installs_driver:
        found = f"its driver root is {root}, and gpushare's plugin mounts {library}"
        yield DRIVER_ROOT_DIFFERS.of(f"ClusterPolicy {operator.name}", found, root=root)


def _no_operator(facts: Facts) -> str:
    if isinstance(facts.operators, Unknown):
        labels = (label for node in facts.nodes for label in node.labels)
        is_seen = any(label.startswith(_DEPLOY) for label in labels)
        return "" if is_seen else "there is no sign of the GPU Operator"
    if not facts.operators:
        return "the GPU Operator is not installed"
    if not isinstance(facts.workloads, Unknown) and PLUGIN not in facts.workloads:
        return f"no DaemonSet {PLUGIN} exists"
    return ""


CHECKS: Final = (
    Check(_GROUP, "no other plugin offers the same GPUs", _shares_with_nobody, subjects.shared),
    Check(
        _GROUP,
        "nothing puts shared GPUs into MIG or MPS mode",
        _is_not_partitioned,
        subjects.shared,
    ),
    Check(_GROUP, "NVIDIA's DRA driver leaves them alone", _claims_nothing, _no_dra_driver),
    Check(_GROUP, "the GPU Operator's settings suit gpushare", _operator_fits, _no_operator),
)
