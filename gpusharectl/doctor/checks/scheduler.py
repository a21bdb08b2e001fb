"""Check that kube-scheduler uses the extender, with the right settings (pure).

For the purpose of each setting see ``daemonset/scheduler/config.yaml`` and docs/scheduling.md.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from gpushare.annotations.pod_annotations import amounts_of, asks_for_share
from gpushare.contract import (
    EXTENDER_PORT,
    EXTENDER_PREFIX,
    NODE_PORTS,
    RESOURCE_COUNT,
    RESOURCE_MEMORY,
)
from gpushare.errors import RequestError
from gpusharectl.doctor.checks.findings import (
    Check,
    DoctorFinding,
    FindingKind,
    problem,
    unchecked,
    warning,
)
from gpusharectl.doctor.facts import subjects
from gpusharectl.doctor.facts.cluster import (
    EXTENDER,
    EXTENDERS,
    SECOND_SCHEDULER,
    Facts,
    Program,
    Scheduler,
    Unknown,
)
from gpusharectl.doctor.facts.seen import SeenPod

WEIGHT: Final = 1
QPS: Final = 50  # kube-scheduler's default: any larger value was chosen
LEAST_TIMEOUT: Final = 5.0  # of the longest bind
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)", re.ASCII)

_GROUP: Final = "kube-scheduler"
_PRINT: Final = "`gpushare scheduler-config` prints the whole configuration"

WITHOUT_EXTENDER = problem(
    "SchedulerWithoutExtender",
    "it places pods by the sum of the node's GPUs, without deciding on a GPU: their containers do "
    "not start",
    f"add the extender to its configuration and restart it: {_PRINT}",
    page="troubleshooting.md#kube-scheduler-does-not-ask-the-extender",
)
SETTING_WRONG = problem(
    "SchedulerSettingWrong",
    "with this value pods are placed without a GPU, or not at all",
    f"set the value and restart kube-scheduler: {_PRINT}",
    page="install.md#5-configure-kube-scheduler",
)
SETTING_OFF = warning(
    "SchedulerSettingOff",
    "pods are placed less well or more slowly",
    f"set the value and restart kube-scheduler: {_PRINT}",
    page="install.md#5-configure-kube-scheduler",
)
NOT_BESIDE = problem(
    "ExtenderNotBeside",
    "it calls an extender on its own node, and none is ready there",
    f"kubectl -n {{namespace}} get pods -o wide {EXTENDERS}; one must be Ready on the node",
    page="troubleshooting.md#the-extender-does-not-answer",
)
NODE_PORT = warning(
    "ExtenderPortIsNodePort",
    "a Service with that NodePort would receive kube-scheduler's calls: its pods would see all "
    "pods, and could decide where pods are bound",
    f"give it the urlPrefix http://127.0.0.1:{EXTENDER_PORT}{EXTENDER_PREFIX} and restart it: "
    f"{_PRINT}",
    page="install.md#5-configure-kube-scheduler",
)
NODE_PORT_TAKEN = problem(
    "ExtenderPortTaken",
    "if kube-proxy serves NodePorts on loopback, kube-scheduler calls the Service's pods instead "
    "of the extender",
    f"delete the Service or change its NodePort, then give kube-scheduler the "
    f"urlPrefix http://127.0.0.1:{EXTENDER_PORT}{EXTENDER_PREFIX}: {_PRINT}",
    page="install.md#5-configure-kube-scheduler",
)
NEVER_ASKED = warning(
    "ExtenderNeverAsked",
    "kube-scheduler may not have the extender in its configuration",
    f"check again in a few seconds; if it persists: {_PRINT}",
    page="troubleshooting.md#kube-scheduler-does-not-ask-the-extender",
)
WRONG_SCHEDULER = problem(
    "PodOfAnotherScheduler",
    "a kube-scheduler without the extender would place it without a GPU",
    "give the pod the schedulerName of one with the extender ({names})",
    page="installation-options.md#schedulers-for-gpu-memory",
)
SCHEDULER_NOT_LISTED = problem(
    "SchedulerNotListed",
    "the extender keeps no room for its pods until it has been asked about one of them: if all are "
    "gated, they wait for ever",
    "add it to the chart's value schedulerNames, or to schedulerNames in the extender's "
    "configuration",
    page="installation-options.md#schedulers-for-gpu-memory",
)


@dataclass(frozen=True, slots=True)
class _Setting:
    """A key of the extender's entry; ``wanted`` is for people."""

    kind: FindingKind
    key: str
    wanted: str
    is_right: Callable[[Any], bool]


def _exactly(kind: FindingKind, key: str, wanted: str | int) -> _Setting:
    return _Setting(kind, key, str(wanted), lambda found: found == wanted)


_SETTINGS: Final = (
    _exactly(SETTING_WRONG, "filterVerb", "filter"),
    _exactly(SETTING_WRONG, "bindVerb", "bind"),
    _Setting(SETTING_WRONG, "ignorable", "false", lambda found: not found),
    _exactly(SETTING_OFF, "prioritizeVerb", "prioritize"),
    _exactly(SETTING_OFF, "preemptVerb", "preempt"),
    _Setting(SETTING_OFF, "nodeCacheCapable", "true", bool),
    _exactly(SETTING_OFF, "weight", WEIGHT),
    # 0 is no pointer in Kubernetes: the default, 5 s.
    _Setting(
        SETTING_OFF,
        "httpTimeout",
        f"{LEAST_TIMEOUT:g}s",
        lambda found: not found or seconds(found) == 0 or (seconds(found) or 0) >= LEAST_TIMEOUT,
    ),
)


def plain(value: Any) -> Any:
    """Return a configuration with all keys in lower case.

    /configz has kube-scheduler's internal form (``URLPrefix``), a file the public one.
    """
    if isinstance(value, dict):
        return {str(key).lower(): plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def ours(configuration: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return gpushare's entry of ``extenders``, in lower case; None if it is missing."""
    for each in configuration.get("extenders") or ():
        path = urlsplit(str(each.get("urlprefix") or "")).path.rstrip("/")
        if path == EXTENDER_PREFIX or RESOURCE_MEMORY in managed(each):
            found: Mapping[str, Any] = each
            return found
    return None


def managed(extender: Mapping[str, Any]) -> dict[str, bool]:
    """Return its ``managedResources``: name, and whether kube-scheduler ignores it."""
    listed = extender.get("managedresources") or ()
    return {str(each.get("name")): bool(each.get("ignoredbyscheduler")) for each in listed}


def _is_configured(facts: Facts) -> Iterator[DoctorFinding]:
    known = _known(facts)
    for name, each in facts.schedulers.items():
        if isinstance(each, Unknown):
            yield unchecked(f"the configuration of {name}", each)
    with_ours = [name for name, each in known.items() if ours(each.configuration) is not None]
    for name, each in known.items():
        if name in with_ours:
            continue
        # With a second kube-scheduler the cluster's own does not need the extender.
        same = {name for other in with_ours for name in _names(known[other])} & set(_names(each))
        if with_ours and not same:
            continue
        found = f"its configuration has no extender with {EXTENDER_PREFIX}"
        yield WITHOUT_EXTENDER.of(name, found)
    if not known:
        yield from _evidence(facts)


def _names(scheduler: Scheduler) -> list[str]:
    """Return the schedulerNames of its profiles."""
    profiles = scheduler.configuration.get("profiles") or [{}]
    names = [each.get("schedulername") for each in profiles]
    return ["default-scheduler" if name is None else str(name) for name in names]


def _known(facts: Facts) -> dict[str, Scheduler]:
    return {name: each for name, each in facts.schedulers.items() if isinstance(each, Scheduler)}


def _evidence(facts: Facts) -> Iterator[DoctorFinding]:
    """Without a readable configuration: find Pending pods and extenders that were never called."""
    asked = [each for each in facts.extenders.values() if isinstance(each, Program)]
    waiting = [pod.key for pod in facts.pods if _waits(pod)]
    if not asked or not waiting:
        return
    questions = sum(
        sample.value
        for each in asked
        for sample in each.samples.of("gpushare_extender_requests_total")
        if sample.labels.get("verb") == "filter"
    )
    if not questions:
        found = f"{len(waiting)} pods are Pending, as {waiting[0]}, and no extender was ever called"
        yield NEVER_ASKED.of("the extenders", found)


def _settings_are_ours(facts: Facts) -> Iterator[DoctorFinding]:
    yield from _not_known(facts, "its settings")
    for name, each in _known(facts).items():
        extender = ours(each.configuration)
        if extender is None:
            continue
        for kind, key, found, wanted in _wrong(each.configuration, extender):
            yield kind.of(f"{name}: {key}", f"it is {found}; set {wanted}")


_Wrong = Iterator[tuple[FindingKind, str, str, str]]


def _wrong(configuration: Mapping[str, Any], extender: Mapping[str, Any]) -> _Wrong:
    for setting in _SETTINGS:
        found = extender.get(setting.key.lower())
        if not setting.is_right(found):
            yield setting.kind, setting.key, _text(found), setting.wanted
    listed = managed(extender)
    if not {RESOURCE_MEMORY, RESOURCE_COUNT} <= listed.keys():
        shown = ", ".join(listed) or "empty"
        yield SETTING_WRONG, "managedResources", shown, f"{RESOURCE_MEMORY}, {RESOURCE_COUNT}"
    for resource, is_ignored in listed.items():
        if is_ignored:
            yield SETTING_OFF, f"managedResources {resource} ignoredByScheduler", "true", "false"
    percentage = _percentage(configuration)
    if _number(percentage) != 100:  # noqa: PLR2004 - percent
        yield SETTING_OFF, "percentageOfNodesToScore", _text(percentage), "100"
    connection = configuration.get("clientconnection") or {}
    if 0 <= _number(connection.get("qps")) <= QPS:  # a negative one is no limit
        yield SETTING_OFF, "clientConnection.qps", _text(connection.get("qps")), "1000, burst 2000"


def _percentage(configuration: Mapping[str, Any]) -> Any:
    """Return the first wrong value: a profile's own, which may be 0, else the one for all."""
    for_all = configuration.get("percentageofnodestoscore")
    profiles = configuration.get("profiles") or [{}]
    own = [profile.get("percentageofnodestoscore") for profile in profiles]
    found = [for_all if each is None else each for each in own]
    return next((each for each in found if _number(each) != 100), 100)  # noqa: PLR2004 - percent


def _text(value: Any) -> str:
    return "not set" if value in (None, "") else str(value)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def seconds(written: Any) -> float | None:
    """Read a duration in Go's format (``1m30s``); None for other text."""
    parts = _DURATION.findall(written) if isinstance(written, str) else []
    if not parts or "".join(number + unit for number, unit in parts) != written:
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _not_known(facts: Facts, about: str) -> Iterator[DoctorFinding]:
    names = [name for name, each in facts.schedulers.items() if isinstance(each, Unknown)]
    if names:
        why = f"the configuration of {', '.join(names)} is unknown (above)"
        yield unchecked(about, Unknown(why))


def _extender_is_beside(facts: Facts) -> Iterator[DoctorFinding]:
    yield from _not_known(facts, "whether its extender is ready")
    pods = facts.pods_of(EXTENDER, SECOND_SCHEDULER)
    ready = {pod.node for pod in pods if pod.is_ready}
    outside = facts.extenders.keys() - {pod.metadata.name for pod in pods}
    for name, each in _known(facts).items():
        extender = ours(each.configuration)
        if extender is None or not each.node:
            continue
        url = str(extender.get("urlprefix"))
        is_own = urlsplit(url).hostname in _LOOPBACK
        if is_own and each.node not in ready and not outside:
            yield NOT_BESIDE.of(name, f"{url} on node {each.node}", namespace=facts.system)


def _port_is_no_node_port(facts: Facts) -> Iterator[DoctorFinding]:
    yield from _not_known(facts, "whether a Service can receive its calls")
    services = {} if isinstance(facts.node_ports, Unknown) else facts.node_ports
    asked = {
        name: port
        for name, each in _known(facts).items()
        if (port := _loopback_port(ours(each.configuration))) in NODE_PORTS
    }
    if isinstance(facts.node_ports, Unknown) and asked:
        yield unchecked("the NodePorts of Services", facts.node_ports)
    for name, port in asked.items():
        takers = [service for service, ports in services.items() if port in ports]
        for service in takers:
            found = f"the Service has NodePort {port}, at which {name} calls the extender"
            yield NODE_PORT_TAKEN.of(service, found)
        if not takers:
            found = f"it calls the extender at port {port}, which may be a NodePort"
            yield NODE_PORT.of(name, found)


def _loopback_port(extender: Mapping[str, Any] | None) -> int | None:
    if extender is None:
        return None
    try:
        parts = urlsplit(str(extender.get("urlprefix")))
        port = parts.port
    except ValueError:
        return None
    return port if parts.hostname in _LOOPBACK else None


def _pods_wait_for_one(facts: Facts) -> Iterator[DoctorFinding]:
    if any(isinstance(each, Unknown) for each in facts.schedulers.values()):
        yield from _not_known(facts, "whether Pending pods have the right schedulerName")
        return
    known = _known(facts).values()
    asking = {name for each in known if ours(each.configuration) for name in _names(each)}
    if not asking:
        return
    for pod in facts.pods:
        if _waits(pod) and pod.scheduler not in asking:
            found = f"its scheduler is {pod.scheduler}, which does not call the extender"
            yield WRONG_SCHEDULER.of(pod.key, found, names=" or ".join(sorted(asking)))


def _extender_lists_all(facts: Facts) -> Iterator[DoctorFinding]:
    yield from _not_known(facts, "whether the extender knows its profiles")
    if isinstance(facts.scheduler_names, Unknown):
        yield unchecked("the setting schedulerNames of the extender", facts.scheduler_names)
        return
    listed = facts.scheduler_names
    for name, each in _known(facts).items():
        if listed is None or ours(each.configuration) is None:
            continue
        for profile in _names(each):
            if profile not in listed:
                found = f"schedulerNames is {', '.join(sorted(listed))}"
                yield SCHEDULER_NOT_LISTED.of(f"profile {profile} of {name}", found)


def _waits(pod: SeenPod) -> bool:
    if pod.node or pod.is_terminal or not asks_for_share(pod):
        return False
    try:
        amounts_of(pod)
    except RequestError:
        return False  # another finding
    return True


def _no_evidence(facts: Facts) -> str:
    if facts.schedulers:
        return ""
    if not any(isinstance(each, Program) for each in facts.extenders.values()):
        return "no kube-scheduler's configuration is known, and no extender was asked"
    is_waiting = any(map(_waits, facts.pods))
    return "" if is_waiting else "no kube-scheduler's configuration is known, and no pod is Pending"


def _none_with_ours(facts: Facts) -> str:
    is_there = any(
        isinstance(each, Unknown) or ours(each.configuration) is not None
        for each in facts.schedulers.values()
    )
    return "" if is_there else "no kube-scheduler has the extender in its configuration"


def _none_waits(facts: Facts) -> str:
    if any(map(_waits, facts.pods)):
        return ""
    return f"no pod with a valid request for {RESOURCE_MEMORY} is Pending"


_settings: Final = subjects.first_of(subjects.installation, _none_with_ours)

CHECKS: Final = (
    Check(
        _GROUP,
        "kube-scheduler has the extender in its configuration",
        _is_configured,
        subjects.first_of(subjects.installation, _no_evidence),
    ),
    Check(_GROUP, "kube-scheduler has the recommended settings", _settings_are_ours, _settings),
    Check(_GROUP, "the extender that it calls is ready", _extender_is_beside, _settings),
    Check(
        _GROUP,
        "no Service can receive the calls to the extender",
        _port_is_no_node_port,
        _settings,
    ),
    Check(
        _GROUP,
        "the extender knows all profiles that call it",
        _extender_lists_all,
        _settings,
    ),
    Check(
        _GROUP,
        "Pending pods have a scheduler with the extender",
        _pods_wait_for_one,
        subjects.first_of(subjects.installation, _none_waits, _none_with_ours),
    ),
)
