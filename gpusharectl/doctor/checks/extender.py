"""Checks of the extenders: who decides, which versions, what they have noticed (pure)."""

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Final

from gpushare.errors import SettingsError
from gpushare.objects.model import Node
from gpushare.process.flags import parse_unit
from gpusharectl.doctor.checks import versions
from gpusharectl.doctor.checks.facts import (
    EXTENDER,
    EXTENDERS,
    SECOND_SCHEDULER,
    Facts,
    Program,
    SeenPod,
    Unknown,
)
from gpusharectl.doctor.checks.findings import Check, Finding, problem, unchecked, warning
from gpusharectl.doctor.checks.nodes import cards_of

SOON: Final = dt.timedelta(days=30)
_CONTROL_PLANE: Final = "node-role.kubernetes.io/control-plane"

_GROUP: Final = "Extenders"

EXTENDER_MISSING = problem(
    "ExtenderMissing",
    "the kube-scheduler there can place no pod that asks for GPU memory while it leads",
    f"kubectl -n {{namespace}} describe daemonset,deployment {EXTENDERS}: does its nodeSelector "
    "choose the node, and does it tolerate its taints?",
)
EXTENDER_NOT_READY = problem(
    "ExtenderNotReady",
    "pods that ask for GPU memory stay Pending while no extender answers",
    "kubectl -n {namespace} logs {about} -c extender; kubectl -n {namespace} describe pod {about}",
)
EXTENDER_SILENT = problem(
    "ExtenderSilent",
    "a kube-scheduler that asks it gets no answer either",
    "kubectl -n {namespace} logs {about} -c extender; does the node's kubelet answer the API "
    "server?",
)
NO_LEADER = problem(
    "NoLeader",
    "no extender decides, so no pod that asks for GPU memory is bound",
    "look in the logs for why the Lease cannot be read or written: kubectl -n {namespace} logs "
    f"{EXTENDERS} -c extender; never delete the Lease",
)
MANY_LEADERS = problem(
    "ManyLeaders",
    "two that decide do not know of one another's decisions, and may give a card away twice",
    "give all of them the same leaderElection in their configuration, then restart all",
)
VERSION_SKEW = warning(
    "VersionSkew",
    "parts that are more than one minor version apart are not made to go together",
    "upgrade the extender first, then the plugins, one minor version at a time; this command any "
    "time",
)
PLUGIN_NEWER = warning(
    "PluginNewer",
    "an older extender may not read what a newer plugin writes",
    "upgrade the extender to the plugin's version",
)
CONFIGURATION_UNUSABLE = problem(
    "ConfigurationUnusable",
    "an extender does not start with it",
    "docs/install.md, The configuration file, has every key; then apply it again",
)
CERTIFICATE_EXPIRED = problem(
    "CertificateExpired",
    "replicas refuse one another, so only kube-schedulers beside the one that decides are answered",
    "make all certificates anew: docker run --rm IMAGE python3 -m extender.certificates | kubectl "
    "apply -f -",
)
CERTIFICATE_ENDS = warning(
    "CertificateEnds",
    "from then on replicas refuse one another",
    "make all certificates anew: docker run --rm IMAGE python3 -m extender.certificates | kubectl "
    "apply -f -",
)
LEDGER_DIFFERS = problem(
    "LedgerDiffers",
    "what the extender counts is not what the pods say; that is a defect of ours",
    "please report it with the log line `ledger differs from pods`; a restart of the extender "
    "counts anew: kubectl -n {namespace} delete pod {about}",
)
DECISION_CHANGED = warning(
    "DecisionChanged",
    "the extender goes on counting the card that it decided on; one that starts later would not "
    "know",
    "kubectl get events -A --field-selector reason=GpushareDecisionChanged names the pods; find in "
    "metadata.managedFields who did it, and delete them",
)
OUTCOME_UNKNOWN = warning(
    "OutcomeUnknown",
    "their units stay reserved until reads show what became of the bindings",
    "look again in a minute; if it stays, see in the extender's log why the API server does not "
    "answer: kubectl -n {namespace} logs {about} -c extender",
)


def _extenders_are_there(facts: Facts) -> Iterator[Finding]:
    running = facts.pods_of(EXTENDER, SECOND_SCHEDULER)
    beside = {pod.node for pod in facts.pods_of(EXTENDER)}
    if not facts.pods_of(SECOND_SCHEDULER):
        for node in facts.nodes:
            if _CONTROL_PLANE in node.labels and beside and node.name not in beside:
                found = "a control-plane node without an extender"
                yield EXTENDER_MISSING.of(node.name, found, namespace=facts.system)
    if not running and not facts.extenders:
        found = f"no extender runs in namespace {facts.system}"
        yield EXTENDER_MISSING.of("the cluster", found, namespace=facts.system)


def _extenders_answer(facts: Facts) -> Iterator[Finding]:
    for name, program in _programs(facts).items():
        if program.not_ready:
            found = f"not ready: {'; '.join(program.not_ready)}"
            yield EXTENDER_NOT_READY.of(name, found, namespace=facts.system)
    not_ready = {
        pod.metadata.name: pod
        for pod in facts.pods_of(EXTENDER, SECOND_SCHEDULER)
        if not pod.is_ready
    }
    for name, pod in not_ready.items():
        if not isinstance(facts.extenders.get(name), Program):
            yield EXTENDER_NOT_READY.of(name, _state(pod), namespace=facts.system)
    for name, each in facts.extenders.items():
        if isinstance(each, Unknown) and not each.lacks_right and name not in not_ready:
            yield EXTENDER_SILENT.of(name, each.why, namespace=facts.system)


def _state(pod: SeenPod) -> str:
    ready = pod.condition("Ready") or pod.condition("PodScheduled")
    said = ready.message or ready.reason if ready is not None else None
    return f"its pod is {pod.status.phase or 'new'}" + (f": {said}" if said else "")


def _one_decides(facts: Facts) -> Iterator[Finding]:
    asked = _programs(facts)
    deciding = [
        name for name, each in asked.items() if each.samples.total("gpushare_extender_leader")
    ]
    if len(deciding) > 1:
        yield MANY_LEADERS.of(", ".join(deciding), "each says that it decides")
    if isinstance(facts.election, Unknown):
        yield unchecked("the Lease of the extenders", facts.election)
    elif facts.election is None:
        # Without leaderElection there is no Lease, and the one extender that is there decides.
        if not deciding and (asked or facts.pods_of(EXTENDER, SECOND_SCHEDULER)):
            found = "there is no Lease, and no extender says that it decides"
            yield NO_LEADER.of("the extenders", found, namespace=facts.system)
    elif not facts.election.is_renewed:
        held = facts.election.holder or "nobody"
        found = f"the Lease, held by {held}, was not renewed within {facts.election.seconds} s"
        yield NO_LEADER.of("the extenders", found, namespace=facts.system)


def _programs(facts: Facts) -> dict[str, Program]:
    return {name: each for name, each in facts.extenders.items() if isinstance(each, Program)}


def _versions_go_together(facts: Facts) -> Iterator[Finding]:
    plugins = _plugin_versions(facts.nodes)
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
        found = _are(parts, oldest, newest)
        yield VERSION_SKEW.of("versions", found)
    if extenders and plugins:
        behind, ahead = (
            min(extenders, key=extenders.__getitem__),
            max(plugins, key=plugins.__getitem__),
        )
        if extenders[behind] < plugins[ahead]:
            found = _are(parts, behind, ahead)
            yield PLUGIN_NEWER.of(ahead, found)


def _are(parts: Mapping[str, versions.Version], *names: str) -> str:
    return ", ".join(f"{name} is {versions.shown(parts[name])}" for name in names)


def _plugin_versions(nodes: tuple[Node, ...]) -> Mapping[str, versions.Version]:
    found = {}
    for node in nodes:
        stated = cards_of(node)
        version = versions.read(stated.plugin) if stated is not None else None
        if version is not None:
            found[f"plugin of {node.name}"] = version
    return found


def _configuration_is_usable(facts: Facts) -> Iterator[Finding]:
    if isinstance(facts.memory_unit, Unknown):
        yield unchecked("the extender's configuration", facts.memory_unit)
    if isinstance(facts.memory_unit, str):
        try:
            parse_unit(facts.memory_unit)
        except SettingsError:
            found = f"memoryUnit is {facts.memory_unit[:63]!r}: write GiB, MiB or 256MiB"
            yield CONFIGURATION_UNUSABLE.of("the extender's configuration", found)


def _certificates_hold(facts: Facts) -> Iterator[Finding]:
    for name, end in facts.certificates.items():
        if isinstance(end, Unknown):
            yield unchecked(f"certificate {name}", end)
            continue
        left = end - facts.now
        if left <= dt.timedelta():
            yield CERTIFICATE_EXPIRED.of(name, f"it has ended on {end:%Y-%m-%d %H:%M} UTC")
        elif left < SOON:
            yield CERTIFICATE_ENDS.of(name, f"it ends in {left.days} days, on {end:%Y-%m-%d}")


def _nothing_noticed(facts: Facts) -> Iterator[Finding]:
    by_why: dict[str, list[str]] = {}
    for name, each in facts.extenders.items():
        if isinstance(each, Unknown) and each.lacks_right:
            by_why.setdefault(each.why, []).append(name)
    for why, names in by_why.items():
        yield unchecked(f"what {', '.join(names)} has noticed", Unknown(why))
    for name, program in _programs(facts).items():
        total = program.samples.total
        if differs := total("gpushare_ledger_differences_total"):
            found = f"{differs:g} differences between its ledger and a fresh count"
            yield LEDGER_DIFFERS.of(name, found, namespace=facts.system)
        if changed := total("gpushare_changed_decisions"):
            found = f"the decision of {changed:g} bound pods was changed by somebody"
            yield DECISION_CHANGED.of(name, found)
        if unknown := total("gpushare_unknown_reserves"):
            found = f"what became of {unknown:g} bindings is not known"
            yield OUTCOME_UNKNOWN.of(name, found, namespace=facts.system)


CHECKS: Final = (
    Check(_GROUP, "an extender is beside every kube-scheduler", _extenders_are_there),
    Check(_GROUP, "they are ready and answer", _extenders_answer),
    Check(_GROUP, "one extender decides", _one_decides),
    Check(_GROUP, "the versions go together", _versions_go_together),
    Check(_GROUP, "the configuration can be used", _configuration_is_usable),
    Check(_GROUP, "certificates hold", _certificates_hold),
    Check(_GROUP, "the extenders have noticed nothing wrong", _nothing_noticed),
)
