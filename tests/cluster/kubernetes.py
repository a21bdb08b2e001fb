"""The Kubernetes that tests and trials run on, chosen by the environment variable `VARIABLE`."""

import os
from dataclasses import dataclass, field
from typing import Final

from localcluster.errors import UsageError
from localcluster.versions import DEFAULT, NATIVE_GANGS, Features, Version, version, versions

VARIABLE: Final = "GPUSHARE_KUBERNETES"


@dataclass(frozen=True)
class Kubernetes:
    """A version, and what is on in it that is off by default."""

    version: Version
    features: Features = field(default_factory=Features)

    @property
    def has_native_gangs(self) -> bool:
        """Whether PodGroups of Kubernetes itself are served."""
        return NATIVE_GANGS.apis.items() <= self.features.apis.items()


# Kubelets from 1.36 on write each device ID of a container into its pod's status, 46 bytes a unit:
# 0.75 MB for a pod of one card in these tests, whose unit is 1 MiB.
_SMALL_STATUS: Final = {"ResourceHealthStatus": False, "ResourceHealthStatusMessage": False}
_HAS_LARGE_STATUS: Final = version("1.37")
CHOICES: Final = {
    **{str(each): Kubernetes(each) for each in versions() if each < _HAS_LARGE_STATUS},
    "1.37": Kubernetes(_HAS_LARGE_STATUS, Features(_SMALL_STATUS)),
    "1.37-native-gangs": Kubernetes(
        _HAS_LARGE_STATUS,
        Features({**NATIVE_GANGS.gates, **_SMALL_STATUS}, NATIVE_GANGS.apis),
    ),
}


def chosen() -> Kubernetes:
    """Return what the variable names, by default the version that localcluster has by default.

    Raises UsageError for an unknown name.
    """
    name = os.environ.get(VARIABLE) or str(DEFAULT)
    if name not in CHOICES:
        raise UsageError(f"{VARIABLE} is {name!r}; wanted one of: {', '.join(CHOICES)}")
    return CHOICES[name]
