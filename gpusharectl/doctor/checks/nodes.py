"""Check nodes and their plugins (pure)."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from gpushare.annotations import inventory
from gpushare.cards.device_list import MAX_DEVICES, WARN_CARD_UNITS, WARN_DEVICES
from gpushare.cards.model import Inventory
from gpushare.contract import (
    ANNOTATION_INVENTORY,
    LABEL_NODE,
    MODEL_SIMULATED,
    RESOURCE_COUNT,
    RESOURCE_MEMORY,
)
from gpushare.errors import RecordError, SettingsError
from gpushare.objects.model import Node
from gpushare.process.flags import parse_unit
from gpushare.text.listed import listed
from gpusharectl.doctor.checks.findings import Check, DoctorFinding, problem, unchecked, warning
from gpusharectl.doctor.checks.startup import not_started
from gpusharectl.doctor.facts import subjects
from gpusharectl.doctor.facts.cluster import PLUGIN, Facts, Program, Unknown
from gpusharectl.doctor.facts.seen import SeenPod
from gpusharectl.doctor.facts.shared_nodes import (
    SHARED,
    inventories,
    is_of_older,
    is_shared,
    plugins_by_node,
    shared_nodes,
    units_of,
)
from gpusharectl.doctor.facts.start_failures import start_failures, why_not_created
from gpusharectl.doctor.facts.versions import minor_of

OLDEST_KUBELET: Final = (1, 27)

_GROUP: Final = "Nodes and their plugins"

PLUGIN_MISSING = problem(
    "PluginMissing",
    "the node is labelled to share its GPUs, and no plugin runs there to offer them",
    "see why the DaemonSet creates no pod there: kubectl -n {namespace} describe daemonset "
    "gpushare-deviceplugin",
    page="troubleshooting.md#a-node-offers-0-units",
)
PLUGIN_NOT_READY = problem(
    "PluginNotReady",
    "a plugin that is not ready may offer nothing, and containers may not start",
    "kubectl -n {namespace} describe pod {about}; kubectl -n {namespace} logs {about}",
    page="troubleshooting.md#a-node-offers-0-units",
)
NOTHING_OFFERED = problem(
    "NothingOffered",
    "no pod that requests GPU memory is scheduled to the node, and its pods cannot restart",
    "look for `registered` and for reasons in the plugin's log: kubectl -n {namespace} logs "
    "daemonset/gpushare-deviceplugin; check the node's kubelet and the health of its GPUs",
    page="troubleshooting.md#a-node-offers-0-units",
)
INVENTORY_MISSING = problem(
    "InventoryMissing",
    "the extender does not know the node's GPUs, so it places nothing there",
    "see in the plugin's log why it does not write the inventory (`node not written yet`)",
)
INVENTORY_UNREADABLE = problem(
    "InventoryUnreadable",
    "nothing new is placed on the node",
    "a plugin of this version rewrites it: check that one runs on the node; if the plugin is "
    "newer, upgrade the extender and this command",
    page="troubleshooting.md#gpushareinventoryunreadable",
)
INVENTORY_DIFFERS = warning(
    "InventoryDiffers",
    "kube-scheduler uses one and the extender the other, so pods may stay Pending or be tried on "
    "nodes without room",
    "check again in half a minute; if it persists, restart the node's plugin: kubectl -n "
    "{namespace} delete pod -l app.kubernetes.io/name=gpushare-deviceplugin "
    "--field-selector spec.nodeName={about}",
)
UNITS_MIXED = problem(
    "UnitsMixed",
    "the same number would mean different amounts of memory: the extender places nothing on nodes "
    "with another unit than its own",
    "set the same --memory-unit for all plugins as the extender's memoryUnit; a node with pods "
    "that use GPU memory keeps its old unit until they end",
    page="reference/settings.md#the-configuration-file",
)
LIST_TOO_LONG = problem(
    "DeviceListTooLong",
    "the kubelet accepts at most 4 MiB of devices, so the plugin offers nothing",
    "set a larger --memory-unit for all plugins and the same memoryUnit for the extender; the "
    "plugin's log names the smallest that fits",
    page="troubleshooting.md#memoryunittoofine",
)
LIST_LARGE = warning(
    "DeviceListLarge",
    "each large pod delays the kubelet's admission of other pods by 0.1 s or more",
    "choose a larger unit for all plugins and the extender; the node's Event names the smallest",
    page="troubleshooting.md#devicelistlarge-cardunitsmany",
)
CARD_UNITS_MANY = warning(
    "CardUnitsMany",
    "from Kubernetes 1.36 on a pod's status lists each unit that it uses, and the API server "
    "rejects a status that is too long",
    "choose a larger unit for all plugins and the extender; the node's Event names the smallest",
    page="troubleshooting.md#devicelistlarge-cardunitsmany",
)
KUBELET_TOO_OLD = problem(
    "KubeletTooOld",
    "gpushare supports Kubernetes 1.27 and newer",
    "upgrade the node",
)
NODE_NOT_LABELLED = warning(
    "NodeNotLabelled",
    "no plugin runs on a node without the label, or it will be deleted",
    "kubectl label node {about} gpushare=true --overwrite; or, to stop sharing its GPUs, delete "
    "its inventory without the policy that protects it: kubectl delete "
    "validatingadmissionpolicybinding gpushare-inventory; kubectl annotate node {about} "
    "gpushare.aliyun.com/inventory-; and apply gpushare again",
)
OLDER_PLUGIN = warning(
    "OlderPlugin",
    "it treats all GPUs as equal, does not know their UUIDs, and guesses which pod an Allocate is "
    "for",
    "migrate the node when it suits",
    page="migrate.md",
)
CARD_UNHEALTHY = warning(
    "CardUnhealthy",
    "the GPU takes no new pods and starts no container",
    "kubectl describe node {node}: the Event names the driver's error and its advice; a GPU in MIG "
    "mode is not shared by memory, and a GPU that was removed stays in the list",
    page="troubleshooting.md#cardunhealthy-cardunreadable",
)
SIMULATED_GPUS = warning(
    "SimulatedGpus",
    "containers there get no GPU: this is for trying gpushare and its manifests",
    "where pods are to use GPUs, install gpushare without the component simulated-gpus "
    "(plugin.simulatedGpus: [])",
    page="kind.md",
)
CORDON_UNREADABLE = problem(
    "CordonUnreadable",
    "another GPU may have been meant, so the node takes no new pods at all",
    "gpushare uncordon-gpu {about} --all --replace, then cordon the right GPU",
)
PLUGIN_BLOCKED = problem(
    "PluginBlocked",
    "the node offers nothing, for a reason that is not a GPU's",
    "kubectl -n {namespace} logs {about}",
    page="troubleshooting.md#gpusharenodeblocked",
)
DEVICES_FORGOTTEN = warning(
    "DevicesForgotten",
    "the kubelet's checkpoint has lost running pods; if a container of theirs ends, it does not "
    "restart",
    "delete these pods when it suits: kubectl get events -A --field-selector "
    "reason=DevicesForgotten",
    page="troubleshooting.md#devicesforgotten",
)


def _nobody_shares(facts: Facts) -> str:
    return subjects.plugin_pods(facts) and subjects.shared(facts)


def _has_a_plugin(facts: Facts) -> Iterator[DoctorFinding]:
    there, failed = plugins_by_node(facts), start_failures(facts)
    why = why_not_created(facts, PLUGIN)
    for node in facts.nodes:
        # A plugin outside the DaemonSet shows only in what the kubelet counts.
        if is_shared(node) and node.name not in there and not units_of(node.allocatable):
            found = f"label {SHARED}, and no pod of the device plugin"
            found += f": {why}" if why else ""
            yield PLUGIN_MISSING.of(node.name, found, namespace=facts.system)
    for pod in facts.pods_of(PLUGIN):
        if pod.node and not pod.is_ready and pod.metadata.name not in failed:
            program = facts.plugins.get(pod.metadata.name)
            reasons = program.not_ready if isinstance(program, Program) else ()
            found = f"the plugin of node {pod.node} is not ready: {'; '.join(reasons) or _why(pod)}"
            yield PLUGIN_NOT_READY.of(pod.metadata.name, found, namespace=facts.system)
    yield from not_started(facts, PLUGIN)


def _why(pod: SeenPod) -> str:
    ready = pod.condition("Ready")
    said = ready.message or ready.reason if ready is not None else None
    return said or f"its pod is {pod.status.phase or 'new'}"


def _nodes_with_plugin(facts: Facts) -> set[str]:
    """Return the nodes with a plugin, except those where it has not started: another finding."""
    failed = start_failures(facts)
    return {
        pod.node
        for pod in facts.pods_of(PLUGIN)
        if pod.metadata.name not in failed and pod.status.phase == "Running"
    }


def _no_plugin_serves(facts: Facts) -> str:
    plugins = _nodes_with_plugin(facts)
    is_there = any(
        node.name in plugins or units_of(node.allocatable)
        for node in facts.nodes
        if is_shared(node)
    )
    return "" if is_there else f"no plugin runs on a node labelled {SHARED}"


def _offers_its_cards(facts: Facts) -> Iterator[DoctorFinding]:
    plugins = _nodes_with_plugin(facts)
    for node in facts.nodes:
        if is_shared(node) and node.name in plugins and not units_of(node.allocatable):
            there = units_of(node.capacity)
            found = f"its plugin runs, but of {there} {RESOURCE_MEMORY} 0 are allocatable"
            yield NOTHING_OFFERED.of(node.name, found, namespace=facts.system)


def _nothing_stated(facts: Facts) -> str:
    return subjects.installation(facts) or (subjects.inventory(facts) and _no_plugin_serves(facts))


def _states_its_cards(facts: Facts) -> Iterator[DoctorFinding]:
    plugins = _nodes_with_plugin(facts)
    for node in facts.nodes:
        text = node.annotations.get(ANNOTATION_INVENTORY)
        if text is None:
            if is_shared(node) and node.name in plugins:
                found = f"no annotation {ANNOTATION_INVENTORY}, although the plugin runs"
                yield INVENTORY_MISSING.of(node.name, found)
            continue
        try:
            stated = inventory.decode(text)
        except RecordError as err:
            yield INVENTORY_UNREADABLE.of(node.name, str(err))
            continue
        try:
            inventory.with_cordons(stated, node)
        except RecordError as err:
            yield CORDON_UNREADABLE.of(node.name, str(err))
        found = _difference(node, stated)
        if found and is_shared(node):
            yield INVENTORY_DIFFERS.of(node.name, found, namespace=facts.system)


def _difference(node: Node, stated: Inventory) -> str:
    """Return how the node's status differs from its inventory.

    The kubelet's list may lack GPUs that were removed. An empty list is another finding.
    """
    healthy = sum(card.units for card in stated.cards if card.is_healthy)
    most = sum(card.units for card in stated.cards)
    there, offered = units_of(node.capacity), units_of(node.allocatable)
    count = units_of(node.capacity, RESOURCE_COUNT)
    if there and not healthy <= there <= most:
        return f"{RESOURCE_MEMORY} is {there}, the GPUs of its inventory have {most} units"
    if offered and offered != healthy:
        return f"{offered} units are allocatable, its healthy GPUs have {healthy}"
    if count != len(stated.cards):
        return f"{RESOURCE_COUNT} is {count}, its inventory has {len(stated.cards)} GPUs"
    return ""


def _counts_in_one_unit(facts: Facts) -> Iterator[DoctorFinding]:
    units = {name: found.unit_mib for name, found in inventories(facts.nodes).items()}
    wanted = Counter(units.values()).most_common(1)[0][0] if units else 0
    whose = "most nodes count"
    if isinstance(facts.memory_unit, Unknown):
        yield unchecked("the extender's unit", Unknown("see its configuration below"))
    elif facts.memory_unit is not None:
        try:
            wanted, whose = parse_unit(facts.memory_unit), "the extender counts"
        except SettingsError:
            return  # another finding: the extender does not start with it
    for name, unit in units.items():
        if unit != wanted:
            yield UNITS_MIXED.of(name, f"counts in units of {unit} MiB, {whose} in {wanted} MiB")


def _list_fits(facts: Facts) -> Iterator[DoctorFinding]:
    refused = {
        pod.node
        for pod in facts.pods_of(PLUGIN)
        if _total(facts, pod, "gpushare_deviceplugin_list_refused")
    }
    stated = inventories(facts.nodes)
    yield from _not_listed(facts, stated)
    for node in facts.nodes:
        sizes = [card.units for card in stated[node.name].cards] if node.name in stated else []
        units = sum(sizes)
        if node.name in refused or units > MAX_DEVICES:
            text = f"its GPUs make {units} devices; the kubelet accepts {MAX_DEVICES}"
            yield LIST_TOO_LONG.of(node.name, text)
            continue
        if units > WARN_DEVICES:
            yield LIST_LARGE.of(node.name, f"{units} of at most {MAX_DEVICES} devices")
        if (largest := max(sizes, default=0)) > WARN_CARD_UNITS:
            yield CARD_UNITS_MANY.of(node.name, f"a GPU has {largest} units")


def _not_listed(facts: Facts, stated: Mapping[str, Inventory]) -> Iterator[DoctorFinding]:
    """Name the nodes whose device list neither an inventory nor a plugin states."""
    failed = start_failures(facts)
    by_why: dict[str, list[str]] = {}
    for pod in facts.pods_of(PLUGIN):
        program = facts.plugins.get(pod.metadata.name)
        is_told = pod.metadata.name in failed  # as another finding
        if isinstance(program, Unknown) and pod.node not in stated and not is_told:
            by_why.setdefault(program.why, []).append(pod.node)
    for why, nodes in by_why.items():
        yield unchecked(f"device lists of {listed(sorted(nodes))}", Unknown(why))


def _total(facts: Facts, pod: SeenPod, metric: str) -> float:
    program = facts.plugins.get(pod.metadata.name)
    return program.samples.total(metric) if isinstance(program, Program) else 0.0


def _kubelet_is_supported(facts: Facts) -> Iterator[DoctorFinding]:
    unknown: list[str] = []
    for node in filter(is_shared, facts.nodes):
        version = node.status.node_info.kubelet_version if node.status.node_info else ""
        minor = minor_of(version)
        if minor is None:
            unknown.append(node.name)
        elif minor < OLDEST_KUBELET:
            yield KUBELET_TOO_OLD.of(node.name, f"its kubelet is {version}")
    if unknown:
        why = "their status has no version that can be read"
        yield unchecked(f"kubelets of {listed(sorted(unknown))}", Unknown(why))


def _nothing_to_label(facts: Facts) -> str:
    if any(map(is_of_older, facts.nodes)):
        return ""  # told even where this gpushare is not installed
    none = subjects.inventory(facts) and "no node offers GPU memory or has an inventory"
    return subjects.installation(facts) or none


def _labels_are_right(facts: Facts) -> Iterator[DoctorFinding]:
    plugins, is_installed = plugins_by_node(facts), subjects.is_installed(facts)
    for node in facts.nodes:
        label = node.labels.get(LABEL_NODE)
        if ANNOTATION_INVENTORY in node.annotations:
            if label != "true" and is_installed:
                shown = "missing" if label is None else repr(label)
                found = f"it has an inventory of shared GPUs, and its label {LABEL_NODE} is {shown}"
                yield NODE_NOT_LABELLED.of(node.name, found)
        elif is_of_older(node) and node.name not in plugins:
            found = f"{RESOURCE_MEMORY} without an inventory: from another plugin"
            yield OLDER_PLUGIN.of(node.name, found)


def _cards_are_healthy(facts: Facts) -> Iterator[DoctorFinding]:
    for node, stated in inventories(shared_nodes(facts)).items():
        for card in stated.cards:
            if not card.is_healthy:
                found = f"GPU {card.index} ({card.uuid}) is unhealthy"
                yield CARD_UNHEALTHY.of(f"{node} GPU {card.index}", found, node=node)


def _cards_are_real(facts: Facts) -> Iterator[DoctorFinding]:
    for node, stated in inventories(shared_nodes(facts)).items():
        if any(card.model == MODEL_SIMULATED for card in stated.cards):
            yield SIMULATED_GPUS.of(node, "its GPUs are simulated")


def _plugins_are_well(facts: Facts) -> Iterator[DoctorFinding]:
    unknown: dict[str, list[str]] = {}
    failed = start_failures(facts)
    for pod in facts.pods_of(PLUGIN):
        name = pod.metadata.name
        program = facts.plugins.get(name)
        if isinstance(program, Unknown) and name not in failed:
            unknown.setdefault(program.why, []).append(pod.node)
        if not isinstance(program, Program):
            continue
        for sample in program.samples.of("gpushare_deviceplugin_blocked"):
            if sample.value:
                found = f"node {pod.node} offers nothing: {sample.labels.get('name', '')}"
                yield PLUGIN_BLOCKED.of(name, found, namespace=facts.system)
        forgotten = program.samples.total("gpushare_deviceplugin_forgotten_pods")
        if forgotten:
            found = f"{forgotten:g} running pods are not in the kubelet's checkpoint"
            yield DEVICES_FORGOTTEN.of(pod.node, found)
    there = plugins_by_node(facts)
    for node in facts.nodes:
        is_ours = is_shared(node) and ANNOTATION_INVENTORY in node.annotations
        if is_ours and units_of(node.allocatable) and node.name not in there:
            unknown.setdefault("they are not pods of the DaemonSet", []).append(node.name)
    for why, nodes in unknown.items():
        yield unchecked(f"plugins of {listed(sorted(nodes))}", Unknown(why))


_nobody_states: Final = subjects.first_of(subjects.installation, subjects.inventory)


def _nothing_listed(facts: Facts) -> str:
    return _nobody_states(facts) and subjects.plugin_pods(facts)


def _nobody_reports(facts: Facts) -> str:
    failed = start_failures(facts)
    pods = [pod for pod in facts.pods_of(PLUGIN) if pod.metadata.name not in failed]
    if pods or not _no_plugin_serves(facts):
        return ""
    return "no plugin runs"


CHECKS: Final = (
    Check(
        _GROUP,
        f"every node labelled {SHARED} has a ready plugin",
        _has_a_plugin,
        subjects.first_of(subjects.installation, _nobody_shares),
    ),
    Check(_GROUP, "kubelets have the plugins' GPU memory", _offers_its_cards, _no_plugin_serves),
    Check(
        _GROUP, "inventories are readable and match the nodes", _states_its_cards, _nothing_stated
    ),
    Check(_GROUP, "all nodes use one unit", _counts_in_one_unit, _nobody_states),
    Check(_GROUP, "device lists are short enough", _list_fits, _nothing_listed),
    Check(_GROUP, "kubelet versions are supported", _kubelet_is_supported, subjects.shared),
    Check(_GROUP, "labels and inventories match", _labels_are_right, _nothing_to_label),
    Check(_GROUP, "all GPUs are healthy", _cards_are_healthy, subjects.shared_inventory),
    Check(_GROUP, "GPUs are not simulated", _cards_are_real, subjects.shared_inventory),
    Check(_GROUP, "the plugins report no problems", _plugins_are_well, _nobody_reports),
)
