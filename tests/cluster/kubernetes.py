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


CHOICES: Final = {
    **{str(each): Kubernetes(each) for each in versions()},
    "1.37-native-gangs": Kubernetes(version("1.37"), NATIVE_GANGS),
}


def chosen() -> Kubernetes:
    """Return what the variable names, by default the version that localcluster has by default.

    Raises UsageError for an unknown name.
    """
    name = os.environ.get(VARIABLE) or str(DEFAULT)
    if name not in CHOICES:
        raise UsageError(f"{VARIABLE} is {name!r}; wanted one of: {', '.join(CHOICES)}")
    return CHOICES[name]
