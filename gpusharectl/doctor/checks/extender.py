"""Check the extenders: leader, versions, certificates, what they report (pure)."""

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Final

from gpushare.errors import SettingsError
from gpushare.process.flags import parse_unit
from gpushare.text.manual import manual
from gpusharectl.doctor.checks.findings import Check, DoctorFinding, problem, unchecked, warning
from gpusharectl.doctor.checks.startup import NEW_CERTIFICATES, not_started
from gpusharectl.doctor.facts import subjects, versions
from gpusharectl.doctor.facts.cluster import (
    EXTENDER,
    EXTENDERS,
    SECOND_SCHEDULER,
    Facts,
    Program,
    Unknown,
    Workload,
)
from gpusharectl.doctor.facts.seen import SeenPod
from gpusharectl.doctor.facts.shared_nodes import inventories
from gpusharectl.doctor.facts.start_failures import start_failures, why_not_created

SOON: Final = dt.timedelta(days=30)
CERTIFICATE_END: Final = "gpushare_extender_certificate_end_timestamp_seconds"
_CONTROL_PLANE: Final = "node-role.kubernetes.io/control-plane"

_GROUP: Final = "Extenders"

EXTENDER_MISSING = problem(
    "ExtenderMissing",
    "the kube-scheduler there cannot place pods that request GPU memory while it leads",
    f"kubectl -n {{namespace}} describe daemonset,deployment {EXTENDERS}: does its nodeSelector "
    "match the node, and does it tolerate the taints?",
)
EXTENDER_NOT_READY = problem(
    "ExtenderNotReady",
    "pods that request GPU memory stay Pending while no extender answers",
    "kubectl -n {namespace} logs {about} -c extender; kubectl -n {namespace} describe pod {about}",
    page="troubleshooting.md#the-extender-does-not-answer",
)
EXTENDER_SILENT = problem(
    "ExtenderSilent",
    "a kube-scheduler that calls it gets no answer either",
    "kubectl -n {namespace} logs {about} -c extender; check that the API server reaches the node's "
    "kubelet",
)
NO_LEADER = problem(
    "NoLeader",
    "no extender decides, so no pod that requests GPU memory is bound",
    "see in the logs why the Lease cannot be read or written: kubectl -n {namespace} logs "
    f"{EXTENDERS} -c extender; never delete the Lease",
    page="troubleshooting.md#no-extender-decides-or-more-than-one",
)
MANY_LEADERS = problem(
    "ManyLeaders",
    "two leaders do not know each other's decisions, and may give the same units away twice",
    "configure the same leaderElection for all, then restart all",
    page="troubleshooting.md#no-extender-decides-or-more-than-one",
)
VERSION_SKEW = warning(
    "VersionSkew",
    "parts more than one minor version apart are not supported together",
    "upgrade the extender first, then the plugins, one minor version at a time; this command at "
    "any time",
    page="upgrade.md",
)
PLUGIN_NEWER = warning(
    "PluginNewer",
    "an older extender may not read what a newer plugin writes",
    "upgrade the extender to the plugin's version",
    page="upgrade.md",
)
CONFIGURATION_UNUSABLE = problem(
    "ConfigurationUnusable",
    "an extender does not start with it",
    "correct it, then apply it again",
    page="reference/settings.md#the-configuration-file",
)
CERTIFICATE_EXPIRED = problem(
    "CertificateExpired",
    "replicas reject each other, so only kube-scheduler on the leader's node gets answers",
    NEW_CERTIFICATES,
    page="troubleshooting.md#a-certificate-ends",
)
CERTIFICATE_ENDS = warning(
    "CertificateEnds",
    "from then on replicas reject each other",
    NEW_CERTIFICATES,
    page="troubleshooting.md#a-certificate-ends",
)
LEDGER_DIFFERS = problem(
    "LedgerDiffers",
    "the extender's ledger does not match the pods; this is a bug",
    "please report it with the log line `ledger differs from pods`; restarting the extender counts "
    "again: kubectl -n {namespace} delete pod {about}",
)
DECISION_CHANGED = warning(
    "DecisionChanged",
    "the extender keeps counting the GPU that it decided; after a restart it would not know",
    "list the pods: kubectl get events -A --field-selector reason=GpushareDecisionChanged; find "
    "the writer in their metadata.managedFields, and delete them",
)
OUTCOME_UNKNOWN = warning(
    "OutcomeUnknown",
    "their units stay reserved until the outcome of the bindings is read",
    "check again in a minute; if it persists, see in the extender's log why the API server does "
    "not answer: kubectl -n {namespace} logs {about} -c extender",
    page="troubleshooting.md#the-outcome-of-a-binding-stays-unknown",
)


def _extenders_are_there(facts: Facts) -> Iterator[DoctorFinding]:
    running = facts.pods_of(EXTENDER, SECOND_SCHEDULER)
    covered = {pod.node for pod in facts.pods_of(EXTENDER)}
    if not facts.pods_of(SECOND_SCHEDULER):
        for node in facts.nodes:
            if _CONTROL_PLANE in node.labels and covered and node.name not in covered:
                found = "a control-plane node without an extender"
                yield EXTENDER_MISSING.of(node.name, found, namespace=facts.system)
    if not running and not facts.extenders:
        # Without one of these the installation lacks a part: another finding.
        there = {} if isinstance(facts.workloads, Unknown) else facts.workloads
        for name in (EXTENDER, SECOND_SCHEDULER):
            if name in there:
                why = _why_no_pods(facts, name, there[name])
                found = f"no extender runs in namespace {facts.system}: {why}"
                yield EXTENDER_MISSING.of("the cluster", found, namespace=facts.system)


def _why_no_pods(facts: Facts, name: str, workload: Workload) -> str:
    if why := why_not_created(facts, name):
        return why
    if workload.wanted == 0 and workload.kind == "DaemonSet":
        return (
            f"DaemonSet {name} selects no node. Where control-plane nodes are not yours, use "
            f"second-scheduler mode: {manual('installation-options.md#second-scheduler-mode')}"
        )
    return f"{workload.kind} {name} has no pods"


def _extenders_answer(facts: Facts) -> Iterator[DoctorFinding]:
    yield from _lacking(facts, "the readiness of")
    for name, program in _programs(facts).items():
        if program.not_ready:
            found = f"not ready: {'; '.join(program.not_ready)}"
            yield EXTENDER_NOT_READY.of(name, found, namespace=facts.system)
    pods = facts.pods_of(EXTENDER, SECOND_SCHEDULER)
    not_ready = {pod.metadata.name: pod for pod in pods if not pod.is_ready}
    failed = start_failures(facts)
    for name, pod in not_ready.items():
        if name not in failed and not isinstance(facts.extenders.get(name), Program):
            yield EXTENDER_NOT_READY.of(name, _state(pod), namespace=facts.system)
    yield from not_started(facts, EXTENDER, SECOND_SCHEDULER)
    for name, each in facts.extenders.items():
        if isinstance(each, Unknown) and not each.lacks_right and name not in not_ready:
            yield EXTENDER_SILENT.of(name, each.why, namespace=facts.system)


def _state(pod: SeenPod) -> str:
    ready = pod.condition("Ready") or pod.condition("PodScheduled")
    said = ready.message or ready.reason if ready is not None else None
    return f"its pod is {pod.status.phase or 'new'}" + (f": {said}" if said else "")


def _one_decides(facts: Facts) -> Iterator[DoctorFinding]:
    yield from _not_asked(facts, "whether these lead:")
    asked = _programs(facts)
    leader = "gpushare_extender_leader"
    deciding = [name for name, each in asked.items() if each.samples.total(leader)]
    if len(deciding) > 1:
        yield MANY_LEADERS.of(", ".join(deciding), "each reports that it is the leader")
    if isinstance(facts.election, Unknown):
        yield unchecked("the Lease of the extenders", facts.election)
    elif facts.election is None:
        # Without leaderElection there is no Lease, and the only extender decides.
        if asked and not deciding and len(asked) == len(facts.extenders):
            found = "there is no Lease, and no extender reports that it is the leader"
            yield NO_LEADER.of("the extenders", found, namespace=facts.system)
    elif not facts.election.is_renewed:
        holder, seconds = facts.election.holder, facts.election.seconds
        found = f"the Lease of {holder} was not renewed within {seconds} s"
        found = found if holder else "no extender holds the Lease"
        yield NO_LEADER.of("the extenders", found, namespace=facts.system)


def _programs(facts: Facts) -> dict[str, Program]:
    return {name: each for name, each in facts.extenders.items() if isinstance(each, Program)}


def _versions_are_compatible(facts: Facts) -> Iterator[DoctorFinding]:
    yield from _not_asked(facts, "the versions of")
    plugins = {
        f"plugin of {name}": version
        for name, stated in inventories(facts.nodes).items()
        if (version := versions.read(stated.plugin)) is not None
    }
    extenders = {
        f"extender {name}": version
        for name, each in _programs(facts).items()
        if (version := versions.read(each.version)) is not None
    }
    own = versions.read(facts.version)
    parts = {**extenders, **plugins, **({"this command": own} if own is not None else {})}
    if not parts:
        return
    oldest, newest = min(parts, key=parts.__getitem__), max(parts, key=parts.__getitem__)
    if not versions.go_together(parts[oldest], parts[newest]):
        yield VERSION_SKEW.of("versions", _are(parts, oldest, newest))
    if extenders and plugins:
        behind = min(extenders, key=extenders.__getitem__)
        ahead = max(plugins, key=plugins.__getitem__)
        if extenders[behind] < plugins[ahead]:
            yield PLUGIN_NEWER.of(ahead, _are(parts, behind, ahead))


def _are(parts: Mapping[str, versions.Version], *names: str) -> str:
    return ", ".join(f"{name} is {versions.shown(parts[name])}" for name in names)


def _configuration_is_valid(facts: Facts) -> Iterator[DoctorFinding]:
    if isinstance(facts.memory_unit, Unknown):
        yield unchecked("the extender's configuration", facts.memory_unit)
    if isinstance(facts.memory_unit, str):
        try:
            parse_unit(facts.memory_unit)
        except SettingsError:
            found = f"memoryUnit is {facts.memory_unit[:63]!r}: write GiB, MiB or 256MiB"
            yield CONFIGURATION_UNUSABLE.of("the extender's configuration", found)


def _certificates_are_valid(facts: Facts) -> Iterator[DoctorFinding]:
    yield from _not_asked(facts, "the certificates of")
    for name, program in _programs(facts).items():
        for sample in program.samples.of(CERTIFICATE_END):
            about = f"{name} {sample.labels.get('file', '')}"
            left = dt.timedelta(seconds=sample.value - facts.now.timestamp())
            end = facts.now + left
            if left <= dt.timedelta():
                yield CERTIFICATE_EXPIRED.of(about, f"it expired on {end:%Y-%m-%d %H:%M} UTC")
            elif left < SOON:
                found = f"it expires in {left.days} days, on {end:%Y-%m-%d}"
                yield CERTIFICATE_ENDS.of(about, found)


def _is_lacking(facts: Facts) -> bool:
    return any(isinstance(e, Unknown) and e.lacks_right for e in facts.extenders.values())


def _not_asked(facts: Facts, about: str) -> Iterator[DoctorFinding]:
    """Name the extenders that could not be asked, or did not answer."""
    yield from _lacking(facts, about)
    silent = [
        name
        for name, each in facts.extenders.items()
        if isinstance(each, Unknown) and not each.lacks_right
    ]
    if silent:
        yield unchecked(f"{about} {', '.join(silent)}", Unknown("no answer: see above"))


def _lacking(facts: Facts, about: str) -> Iterator[DoctorFinding]:
    """Name the extenders that could not be asked for lack of a right."""
    by_why: dict[str, list[str]] = {}
    for name, each in facts.extenders.items():
        if isinstance(each, Unknown) and each.lacks_right:
            by_why.setdefault(each.why, []).append(name)
    for why, names in by_why.items():
        yield unchecked(f"{about} {', '.join(names)}", Unknown(why))


def _no_problems_reported(facts: Facts) -> Iterator[DoctorFinding]:
    yield from _not_asked(facts, "the reports of")
    for name, program in _programs(facts).items():
        total = program.samples.total
        if differs := total("gpushare_ledger_differences_total"):
            found = f"{differs:g} differences between its ledger and the pods"
            yield LEDGER_DIFFERS.of(name, found, namespace=facts.system)
        if changed := total("gpushare_changed_decisions"):
            found = f"somebody changed the decision of {changed:g} bound pods"
            yield DECISION_CHANGED.of(name, found)
        if unknown := total("gpushare_unknown_reserves"):
            found = f"the outcome of {unknown:g} bindings is unknown"
            yield OUTCOME_UNKNOWN.of(name, found, namespace=facts.system)


def _no_versions(facts: Facts) -> str:
    is_there = _programs(facts) or any(each.plugin for each in inventories(facts.nodes).values())
    return "" if is_there or _is_lacking(facts) else "no extender and no plugin reports its version"


def _no_configuration(facts: Facts) -> str:
    if facts.memory_unit is None:
        return subjects.extender(facts) or "the extender has no configuration file"
    return ""


def _no_certificates(facts: Facts) -> str:
    programs = _programs(facts).values()
    is_there = any(True for each in programs for _ in each.samples.of(CERTIFICATE_END))
    return "" if _is_lacking(facts) or is_there else "no extender reports a certificate"


CHECKS: Final = (
    Check(
        _GROUP,
        "every kube-scheduler has an extender beside it",
        _extenders_are_there,
        subjects.installation,
    ),
    Check(_GROUP, "extenders are ready and answer", _extenders_answer, subjects.extender),
    Check(_GROUP, "there is exactly one leader", _one_decides, subjects.extender),
    Check(
        _GROUP,
        "versions are compatible",
        _versions_are_compatible,
        subjects.first_of(subjects.installation, _no_versions),
    ),
    Check(_GROUP, "the configuration is valid", _configuration_is_valid, _no_configuration),
    Check(_GROUP, "certificates are valid", _certificates_are_valid, _no_certificates),
    Check(_GROUP, "extenders report no problems", _no_problems_reported, subjects.answer),
)
