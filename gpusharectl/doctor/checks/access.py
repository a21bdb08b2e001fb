"""Check accounts, their rights, policies, quotas and runtime classes (pure)."""

from collections.abc import Iterator
from typing import Final

from gpushare.contract import RESOURCE_MEMORY
from gpushare.errors import QuantityError
from gpushare.objects.quantity import parse_units
from gpusharectl.doctor.checks.findings import Check, DoctorFinding, problem, unchecked, warning
from gpusharectl.doctor.facts import subjects
from gpusharectl.doctor.facts.cluster import (
    EXTENDER,
    LISTS_BUDGETS,
    LISTS_NAMESPACES,
    OPTIONAL,
    PATCHES,
    PLUGIN,
    PREEMPTS,
    Facts,
    Permission,
    Unknown,
)
from gpusharectl.doctor.facts.versions import minor_of

POLICIES_SINCE: Final = (1, 30)
POLICIES: Final = (
    "gpushare-deviceplugin-own-node",
    "gpushare-decisions",
    "gpushare-created-with-node",
    "gpushare-bindings",
    "gpushare-inventory",
    "gpushare-cdi-annotations",
    "gpushare-ephemeral-containers",
    "gpushare-events",
    "gpushare-extender-pods",
    "gpushare-quotas",
)
_OF_PATCHES: Final = "gpushare-extender-pods"  # harmless to lack while the extender patches no pods
LEASES: Final = "coordination.k8s.io"
_POD_GROUPS: Final = "podgroups"

_GROUP: Final = "Access"
_APPLY: Final = (
    "apply your installation again (helm upgrade, or kubectl apply -k YOUR-KUSTOMIZATION)"
)

POLICY_MISSING = problem(
    "PolicyMissing",
    "without it anyone who may patch pods or Nodes can forge gpushare's annotations, pods take a "
    "node's GPU memory without being scheduled, the extender may change more of pods than it needs "
    "to, or a quota is taken that cannot be read",
    f"{_APPLY}; a migration from Aliyun gpushare adds them in its last step",
    page="security.md#without-the-policies",
)
PERMISSION_MISSING = problem(
    "PermissionMissing",
    "the program cannot do its work",
    f"{_APPLY}; to check the first right: kubectl auth can-i {{verb}} {{resource}} --as={{account}}"
    "{more}",
)
POD_GROUPS_UNREADABLE = warning(
    "PodGroupsUnreadable",
    "gangs whose pods name a PodGroup are not placed",
    f"{_APPLY}; without such gangs, ignore this",
    page="gangs.md",
)
RUNTIME_CLASS_MISSING = problem(
    "RuntimeClassMissing",
    "no pod of the device plugin can be created",
    "install NVIDIA's container runtime with its RuntimeClass; if "
    "it is the default runtime, use the component default-runtime (plugin.runtimeClassName: '')",
    page="install.md#what-you-need",
)
QUOTA_USED_UP = warning(
    "QuotaUsedUp",
    "new pods of the namespace that request GPU memory are rejected at creation, so they do not "
    "even become Pending",
    "raise requests.aliyun.com/gpu-mem in it, or delete pods: kubectl -n {namespace} describe "
    "resourcequota {name}",
)
PREEMPTION_NOT_PERMITTED = problem(
    "PreemptionNotPermitted",
    "the extender is to evict pods for more important ones, and may not, so pods and gangs with a "
    "high priority wait for room",
    "install the component preemption (preemption.enabled), or set preemption.enabled: false in "
    "the extender's configuration",
    page="installation-options.md#preemption",
)
PREEMPTION_OFF = warning(
    "PreemptionOff",
    "the extender has the rights of the component preemption, and evicts no pod for a more "
    "important one",
    "set preemption.enabled: true in the extender's configuration, "
    "or remove the component (preemption.enabled)",
    page="installation-options.md#preemption",
)


def needed(system: str) -> tuple[Permission, ...]:
    """Return the rights in daemonset/base/access that both programs need."""

    def of(account: str, resource: str, *verbs: str, **more: str) -> list[Permission]:
        return [Permission(account, verb, resource, **more) for verb in verbs]

    return (
        *of(EXTENDER, "pods", "get", "list", "watch"),
        *of(EXTENDER, "nodes", "list", "watch"),
        *LISTS_NAMESPACES,
        *of(EXTENDER, _POD_GROUPS, "list", "watch", group="scheduling.x-k8s.io"),
        *of(EXTENDER, _POD_GROUPS, "list", "watch", group="scheduling.k8s.io"),
        *of(EXTENDER, "jobs", "get", group="batch"),
        *of(EXTENDER, "pods/binding", "create"),
        *of(EXTENDER, "pods/eviction", "create"),
        *of(EXTENDER, "events", "create"),
        *of(EXTENDER, "tokenreviews", "create", group="authentication.k8s.io"),
        *of(EXTENDER, "subjectaccessreviews", "create", group="authorization.k8s.io"),
        *of(EXTENDER, "leases", "create", group=LEASES, namespace=system),
        *of(EXTENDER, "leases", "get", "update", group=LEASES, namespace=system, name=EXTENDER),
        *of(PLUGIN, "pods", "list", "watch", "patch"),
        *of(PLUGIN, "pods/status", "patch"),
        *of(PLUGIN, "nodes", "list", "watch"),
        *of(PLUGIN, "nodes/status", "patch"),
        *of(PLUGIN, "nodes/pods", "get"),
        *of(PLUGIN, "events", "create"),
    )


def account(permission: Permission, system: str) -> str:
    """Return the user name of one of gpushare's accounts."""
    return f"system:serviceaccount:{system}:{permission.account}"


def _accounts_may(facts: Facts) -> Iterator[DoctorFinding]:
    unknown = sorted({each.why for each in facts.permissions.values() if isinstance(each, Unknown)})
    for why in unknown:
        yield unchecked("the rights of gpushare's accounts", Unknown(why))
    refused: dict[str, list[Permission]] = {}
    of_pod_groups: list[Permission] = []
    for each, is_allowed in facts.permissions.items():
        if is_allowed is False and each.resource == _POD_GROUPS:
            of_pod_groups.append(each)
        elif is_allowed is False and each not in (*OPTIONAL, *LISTS_NAMESPACES):
            refused.setdefault(each.account, []).append(each)
    if of_pod_groups:
        found = f"it may not {', '.join(map(words, of_pod_groups))}"
        yield POD_GROUPS_UNREADABLE.of(of_pod_groups[0].account, found)
    for name, missing in refused.items():
        first = missing[0]
        yield PERMISSION_MISSING.of(
            name,
            f"it may not {', '.join(map(words, missing))}",
            verb=first.verb,
            resource=f"{first.resource}.{first.group}" if first.group else first.resource,
            account=account(first, facts.system),
            more=f" -n {first.namespace}" if first.namespace else " -A",
        )


def words(permission: Permission) -> str:
    """Return a right in a few words, such as ``list pods``."""
    name = f" {permission.name}" if permission.name else ""
    where = f" in namespace {permission.namespace}" if permission.namespace else ""
    group = f".{permission.group}" if permission.resource == _POD_GROUPS else ""
    return f"{permission.verb} {permission.resource}{group}{name}{where}"


def _policies_hold(facts: Facts) -> Iterator[DoctorFinding]:
    if isinstance(facts.server, Unknown):
        yield unchecked("the API server's version", facts.server)
    for what, there in (("policy", facts.policies), ("binding", facts.policy_bindings)):
        if isinstance(there, Unknown):
            yield unchecked(f"admission {what} of gpushare", there)
            continue
        kind = "ValidatingAdmissionPolicy" + ("Binding" if what == "binding" else "")
        for name in POLICIES:
            if name == _OF_PATCHES and facts.permissions.get(PATCHES) is False:
                continue
            if name not in there:
                yield POLICY_MISSING.of(name, f"{kind} {name} is missing")


def _runtime_is_there(facts: Facts) -> Iterator[DoctorFinding]:
    if isinstance(facts.workloads, Unknown):
        yield unchecked("the DaemonSet of the device plugin", facts.workloads)
        return
    plugin = facts.workloads.get(PLUGIN)
    name = plugin.runtime_class if plugin is not None else ""
    if not name:
        return
    if isinstance(facts.runtime_classes, Unknown):
        yield unchecked("runtime classes", facts.runtime_classes)
    elif name not in facts.runtime_classes:
        found = f"the device plugin uses RuntimeClass {name}, which does not exist"
        operators = () if isinstance(facts.operators, Unknown) else facts.operators
        if any(each.uses_nri for each in operators):
            found += ": the GPU Operator creates none with cdi.nriPluginEnabled=true"
        yield RUNTIME_CLASS_MISSING.of(name, found)


def _no_runtime_class(facts: Facts) -> str:
    if isinstance(facts.workloads, Unknown):
        return subjects.installation(facts)
    plugin = facts.workloads.get(PLUGIN)
    if plugin is None:
        return f"no DaemonSet {PLUGIN} exists"
    return "" if plugin.runtime_class else "the device plugin uses no RuntimeClass"


def _no_policies(facts: Facts) -> str:
    version = "" if isinstance(facts.server, Unknown) else facts.server
    if (minor_of(version) or POLICIES_SINCE) < POLICIES_SINCE:
        return f"Kubernetes {version} has no admission policies"
    return subjects.installation(facts)


def _no_quotas(facts: Facts) -> str:
    is_there = isinstance(facts.quotas, Unknown) or facts.quotas
    return "" if is_there else f"no quota limits {RESOURCE_MEMORY}"


def _quotas_leave_room(facts: Facts) -> Iterator[DoctorFinding]:
    if isinstance(facts.quotas, Unknown):
        yield unchecked("resource quotas", facts.quotas)
        return
    for quota in facts.quotas:
        try:
            is_used_up = parse_units(quota.used) >= parse_units(quota.hard)
        except QuantityError:
            is_used_up = True
        if is_used_up:
            found = f"{quota.used} of {quota.hard} {RESOURCE_MEMORY} are used"
            about = f"{quota.namespace}/{quota.name}"
            yield QUOTA_USED_UP.of(about, found, namespace=quota.namespace, name=quota.name)


def _setting_and_rights_agree(facts: Facts) -> Iterator[DoctorFinding]:
    if isinstance(facts.preempts, Unknown):
        yield unchecked("the setting preemption of the extender", facts.preempts)
        return
    given = {each: facts.permissions.get(each) for each in PREEMPTS}
    missing = [each for each, is_given in given.items() if is_given is False]
    unknown = [each for each in given.values() if isinstance(each, Unknown)]
    if unknown:
        yield unchecked("the rights of the extender's preemption", unknown[0])
    elif facts.preempts and missing:
        found = f"preemption.enabled is true, and it may not {', '.join(map(words, missing))}"
        yield PREEMPTION_NOT_PERMITTED.of(EXTENDER, found)
    elif not facts.preempts and given[LISTS_BUDGETS]:
        found = f"it may {words(LISTS_BUDGETS)}, and preemption.enabled is not true"
        yield PREEMPTION_OFF.of(EXTENDER, found)


def _is_off(facts: Facts) -> str:
    is_on = facts.preempts or facts.permissions.get(LISTS_BUDGETS) is True
    return "" if is_on else "the extender evicts no pods for more important ones"


CHECKS: Final = (
    Check(_GROUP, "gpushare's accounts have their rights", _accounts_may, subjects.installation),
    Check(
        _GROUP,
        "policies protect decisions and inventories from forgery",
        _policies_hold,
        _no_policies,
    ),
    Check(_GROUP, "the plugin's RuntimeClass exists", _runtime_is_there, _no_runtime_class),
    Check(_GROUP, "no quota is used up", _quotas_leave_room, _no_quotas),
    Check(
        "Preemption",
        "the extender has setting and rights of its preemption",
        _setting_and_rights_agree,
        _is_off,
    ),
)
