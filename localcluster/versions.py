"""The versions of Kubernetes that a cluster can have, and features that are off by default."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import total_ordering
from pathlib import Path
from typing import Final

from localcluster.errors import UsageError
from localcluster.gobuild import module_version

_SOURCES: Final = Path(__file__).parent / "kubernetes"


@total_ordering
@dataclass(frozen=True)
class Version:
    """A version of Kubernetes, such as 1.34, of which one release is built."""

    minor: int

    def __str__(self) -> str:
        return f"1.{self.minor}"

    def __lt__(self, other: "Version") -> bool:
        return self.minor < other.minor

    @property
    def module(self) -> Path:
        """The folder of the go.mod that requires its programs."""
        return _SOURCES / f"v{self}"

    @property
    def release(self) -> str:
        """The release that is built, such as `v1.34.4`."""
        return module_version(self.module, "k8s.io/kubernetes")

    @property
    def has_policies(self) -> bool:
        """Whether it has ValidatingAdmissionPolicies."""
        return self >= _HAS_POLICIES

    @property
    def reports_pods(self) -> bool:
        """Whether its kubelet lists its pods to a program that may read no more than that."""
        return self >= _REPORTS_PODS

    @property
    def retries_rejected_pods(self) -> bool:
        """Whether its kube-scheduler tries a pod that an extender rejected again within seconds."""
        return self >= _RETRIES_REJECTED_PODS


DEFAULT: Final = Version(34)
_HAS_POLICIES: Final = Version(30)
_REPORTS_PODS: Final = Version(33)
_RETRIES_REJECTED_PODS: Final = Version(32)


def versions() -> tuple[Version, ...]:
    """Return all versions that a cluster can have, the oldest first."""
    return tuple(sorted(Version(int(each.name.split(".")[1])) for each in _SOURCES.glob("v1.*")))


def version(text: str) -> Version:
    """Return the version that is called `text`, such as `1.34`; raise UsageError for another."""
    known = {str(each): each for each in versions()}
    if text not in known:
        raise UsageError(f"no cluster can have Kubernetes {text!r}; there are: {', '.join(known)}")
    return known[text]


@dataclass(frozen=True)
class Features:
    """What is switched on or off against a version's defaults.

    Every component gets the feature gates; the API server serves the APIs, such as
    `scheduling.k8s.io/v1beta1`.
    """

    gates: Mapping[str, bool] = field(default_factory=dict)
    apis: Mapping[str, bool] = field(default_factory=dict)

    @property
    def gate_flags(self) -> list[str]:
        """The flag of each component that sets the gates."""
        return _flag("--feature-gates", self.gates)

    @property
    def api_flags(self) -> list[str]:
        """The flag of the API server that sets the APIs."""
        return _flag("--runtime-config", self.apis)


def _flag(name: str, values: Mapping[str, bool]) -> list[str]:
    words = ",".join(f"{key}={str(on).lower()}" for key, on in values.items())
    return [f"{name}={words}"] if words else []


NATIVE_GANGS: Final = Features({"GenericWorkload": True}, {"scheduling.k8s.io/v1beta1": True})
"""In 1.37: kube-scheduler places the pods of a PodGroup all or nothing."""

MUTATING_POLICIES: Final = Features(
    {"MutatingAdmissionPolicy": True}, {"admissionregistration.k8s.io/v1beta1": True}
)
"""In 1.34: MutatingAdmissionPolicies, which 1.36 and newer have by default."""
