"""Findings about programs of gpushare that do not start (pure)."""

from collections.abc import Iterator
from typing import Final

from gpushare.text.counted import counted
from gpusharectl.doctor.checks.findings import DoctorFinding, problem, unchecked
from gpusharectl.doctor.facts.cluster import Facts, Unknown
from gpusharectl.doctor.facts.start_failures import (
    Cause,
    StartFailure,
    start_failures,
    waits_without_reason,
)

NEW_CERTIFICATES: Final = (
    "create new certificates: helm upgrade if the chart makes them (certificates.source: chart), "
    "else gpushare certificates | kubectl apply -f -; cert-manager makes its own"
)

IMAGE_NOT_PULLED = problem(
    "ImageNotPulled",
    "the program cannot start without its image",
    "push the image to a registry that the nodes reach, and name it: {setting}; then apply again",
    page="troubleshooting.md#a-program-of-gpushare-does-not-start",
)
CANNOT_BE_CREATED = problem(
    "ProgramNotCreated",
    "the kubelet cannot create the program's container",
    "{cure}",
    page="troubleshooting.md#a-program-of-gpushare-does-not-start",
)
CRASHES = problem(
    "ProgramCrashes",
    "the program ends as soon as it starts",
    "see its last lines: kubectl -n {namespace} logs {about} -c {container} --previous",
    page="troubleshooting.md#a-program-of-gpushare-does-not-start",
)

# The kubelet's messages, and what cures each.
_CURES: Final[dict[str, str]] = {
    "gpushare-extender-tls": NEW_CERTIFICATES,
    "kubelet.crt": (
        "the node has no /var/lib/kubelet/pki/kubelet.crt: use the component signed-kubelet "
        "(plugin.signedKubelet: true)"
    ),
    "no runtime for": (
        "the node's container runtime does not know the RuntimeClass: configure NVIDIA's container "
        "toolkit there"
    ),
    "libnvidia-ml.so.1": (
        "the driver's library is elsewhere on the node: correct plugin.driverRoot, or the path in "
        "the component driver-root"
    ),
}


def not_started(facts: Facts, *programs: str) -> Iterator[DoctorFinding]:
    """Yield why pods of these programs do not start."""
    for failure in start_failures(facts).values():
        if failure.pod.program in programs:
            yield _of(failure, facts)
    if isinstance(facts.warned, Unknown):
        names = [each.metadata.name for each in waits_without_reason(facts, *programs)]
        if names:
            about = f"why {counted(len(names), 'pod')} (as {names[0]}) cannot be created"
            yield unchecked(about, facts.warned)


def _of(failure: StartFailure, facts: Facts) -> DoctorFinding:
    name, node = failure.pod.metadata.name, failure.pod.node
    where = f"on node {node}, " if node else ""
    container = f"container {failure.container}: " if failure.container else ""
    found = f"{where}{container}{failure.said}"
    if failure.cause is Cause.IMAGE:
        image = f"{where}image {failure.image}: {failure.said}"
        return IMAGE_NOT_PULLED.of(name, image, setting=_setting(failure.image))
    if failure.cause is Cause.CRASH:
        return CRASHES.of(name, found, namespace=facts.system, container=failure.container)
    describe = f"kubectl -n {facts.system} describe pod {name}"
    cure = next((cure for text, cure in _CURES.items() if text in failure.said), describe)
    return CANNOT_BE_CREATED.of(name, found, cure=cure)


def _setting(image: str) -> str:
    if "kube-scheduler" in image:
        return "images: in your kustomization, or secondScheduler.image in your values"
    return "images: in your kustomization, or image.repository and image.tag in your values"
