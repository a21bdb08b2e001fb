"""Check a second kube-scheduler: its version, and the webhooks that change new pods (pure)."""

import re
from collections.abc import Iterator
from typing import Final

from gpusharectl.doctor.checks.findings import Check, DoctorFinding, problem, unchecked, warning
from gpusharectl.doctor.facts import subjects
from gpusharectl.doctor.facts.cluster import SECOND_SCHEDULER, Facts, Unknown
from gpusharectl.doctor.facts.seen import SeenPod
from gpusharectl.doctor.facts.versions import read, shown

_CONTAINER: Final = "kube-scheduler"

SECOND_SCHEDULER_VERSION = warning(
    "SecondSchedulerVersion",
    "Kubernetes supports a kube-scheduler of the API server's minor version; a newer one may use "
    "APIs that this cluster does not have, an older one may ignore fields of pods",
    "use kube-scheduler {wanted}: helm upgrade without secondScheduler.image.tag takes it, or set "
    "newTag of registry.k8s.io/kube-scheduler below images: in your kustomization",
)
WEBHOOK_AUTHORITY_DIFFERS = problem(
    "WebhookAuthorityDiffers",
    "the API server cannot call the extender, so new pods that request GPU memory are rejected, "
    "stay with another scheduler, or begin without the scheduling gate",
    "helm upgrade writes the Secret's authority into the webhook; if you set "
    "certificates.authority, set it to the Secret's ca.crt; with cert-manager, see why its "
    "cainjector does not",
)
_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END", re.DOTALL)


def _has_the_clusters_version(facts: Facts) -> Iterator[DoctorFinding]:
    if isinstance(facts.server, Unknown):
        yield unchecked("the cluster's version", facts.server)
        return
    server = read(facts.server)
    if server is None:
        why = f"the API server's version {facts.server[:63]!r} cannot be read"
        yield unchecked("the cluster's version", Unknown(why))
        return
    images = {_image(pod): pod for pod in facts.pods_of(SECOND_SCHEDULER)}
    for image, pod in sorted(images.items()):
        version = read(tag_of(image))
        if version is None:
            why = f"its image {image or '(unknown)'} has no version in its tag"
            yield unchecked(f"the version of {pod.metadata.name}", Unknown(why))
        elif version[:2] != server[:2]:
            found = f"it runs kube-scheduler {tag_of(image)}, and the cluster is {facts.server}"
            wanted = f"v{shown(server)}"
            yield SECOND_SCHEDULER_VERSION.of(pod.metadata.name, found, wanted=wanted)


def _image(pod: SeenPod) -> str:
    containers = pod.spec.containers or ()
    return next((each.image for each in containers if each.name == _CONTAINER), "")


def tag_of(image: str) -> str:
    """Return the tag of an image's name, without its digest; empty if it has none."""
    name = image.partition("@")[0].rpartition("/")[2]
    return name.partition(":")[2]


def _is_trusted(facts: Facts) -> Iterator[DoctorFinding]:
    if isinstance(facts.webhooks, Unknown):
        yield unchecked("the authority that the webhooks trust", facts.webhooks)
        return
    for name, webhook in facts.webhooks.items():
        if _certificates(webhook.authority) - _certificates(webhook.trusts):
            secret = f"Secret {facts.system}/gpushare-extender-tls"
            found = f"its caBundle lacks the certificate authority of {secret}"
            yield WEBHOOK_AUTHORITY_DIFFERS.of(f"webhook {name}", found)


def _certificates(pem: bytes) -> set[bytes]:
    """Return the certificates without line breaks."""
    return {b"".join(each.split()) for each in _CERTIFICATE.findall(pem)}


def _no_webhook(facts: Facts) -> str:
    if isinstance(facts.webhooks, Unknown):
        return subjects.second_scheduler(facts)
    return "" if facts.webhooks else "gpushare has no webhook"


_GROUP: Final = "kube-scheduler"
CHECKS: Final = (
    Check(
        _GROUP,
        "the second kube-scheduler has the cluster's version",
        _has_the_clusters_version,
        subjects.second_scheduler,
    ),
    Check(
        _GROUP,
        "the webhooks trust the extenders",
        _is_trusted,
        _no_webhook,
    ),
)
