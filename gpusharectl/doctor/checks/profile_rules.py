"""Check that the extender knows what kube-scheduler's configuration says about all pods (pure)."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpusharectl.doctor.checks.findings import Check, DoctorFinding, unchecked, warning
from gpusharectl.doctor.checks.scheduler import managed, ours, plain
from gpusharectl.doctor.facts import subjects
from gpusharectl.doctor.facts.cluster import Facts, Scheduler, Unknown

_REQUIRED: Final = "requiredduringschedulingignoredduringexecution"

RULE_UNKNOWN = warning(
    "SchedulerRuleUnknown",
    "gangs, gated pods and preemption wait for what kube-scheduler does not ask for, or plan with "
    "nodes that it rejects",
    "set {setting} in section scheduler of the extender's configuration (Helm: "
    "extender.configuration) to what kube-scheduler has",
    page="scheduling.md#what-only-kube-scheduler-knows",
)


def _rules_are_known(facts: Facts) -> Iterator[DoctorFinding]:
    if isinstance(facts.profile_rules, Unknown):
        yield unchecked("the setting scheduler of the extender", facts.profile_rules)
        return
    known = plain(facts.profile_rules or {})
    for name, each in _with_ours(facts).items():
        configuration = each.configuration
        for setting, found in (
            ("ignoredResources", _ignored(configuration)),
            ("ignoredResourceGroups", _values(configuration, "ignoredresourcegroups")),
        ):
            missing = found - _list(known.get(setting.lower()))
            for resource in sorted(each for each in missing if _is_offered(facts, each)):
                text = f"it ignores {resource}, which some nodes offer, and the extender counts it"
                yield RULE_UNKNOWN.of(name, text, setting=setting)
        added = [_required(args) for args in _args(configuration, "NodeAffinity")] or [None]
        if _required(known) not in added:
            text = "its addedAffinity is another one than the extender's"
            yield RULE_UNKNOWN.of(name, text, setting="addedAffinity")


def _with_ours(facts: Facts) -> dict[str, Scheduler]:
    return {
        name: each
        for name, each in facts.schedulers.items()
        if isinstance(each, Scheduler) and ours(each.configuration) is not None
    }


def _args(configuration: Mapping[str, Any], plugin: str) -> list[Mapping[str, Any]]:
    """Return what each profile configures of a plugin, in lower case; empty where it does not."""
    found: list[Mapping[str, Any]] = []
    for profile in configuration.get("profiles") or ():
        own: Mapping[str, Any] = {}
        for each in profile.get("pluginconfig") or ():
            if each.get("name") == plugin and isinstance(each.get("args"), dict):
                own = each["args"]
        found.append(own)
    return found


def _values(configuration: Mapping[str, Any], key: str) -> set[str]:
    return set[str]().union(
        *(_list(args.get(key)) for args in _args(configuration, "NodeResourcesFit"))
    )


def _ignored(configuration: Mapping[str, Any]) -> set[str]:
    """Return the resources that kube-scheduler ignores by name.

    It also ignores those that an extender has as ``ignoredByScheduler`` (pkg/scheduler,
    buildExtenders). Ours must not be among them, which another check says.
    """
    own = ours(configuration)
    others = [each for each in configuration.get("extenders") or () if each is not own]
    of_others = {
        name for each in others for name, is_ignored in managed(each).items() if is_ignored
    }
    return of_others | _values(configuration, "ignoredresources")


def _list(value: Any) -> set[str]:
    return set(map(str, value)) if isinstance(value, list) else set()


def _is_offered(facts: Facts, name: str) -> bool:
    """Return whether a node offers a resource, or one of a group: others are not counted."""
    return any(
        name in (resource, resource.partition("/")[0]) and str(amount) != "0"
        for node in facts.nodes
        for resource, amount in node.allocatable.items()
    )


def _required(settings: Mapping[str, Any]) -> Any:
    """Return the required part of added affinity without its empty values; None if none is set."""
    added = settings.get("addedaffinity")
    return (_dense(added.get(_REQUIRED)) if isinstance(added, dict) else None) or None


def _dense(value: Any) -> Any:
    if isinstance(value, dict):
        dense = {key: _dense(each) for key, each in value.items()}
        return {key: each for key, each in dense.items() if each}
    return [_dense(each) for each in value] if isinstance(value, list) else value


def _nothing_to_compare(facts: Facts) -> str:
    if not _with_ours(facts):
        return "no configuration of a kube-scheduler with the extender is known"
    return "no extender has a configuration file" if facts.profile_rules is None else ""


CHECKS: Final = (
    Check(
        "kube-scheduler",
        "the extender knows what it ignores and which nodes it leaves out",
        _rules_are_known,
        subjects.first_of(subjects.installation, _nothing_to_compare),
    ),
)
