"""Errors of the device plugin. Each text says what was expected, what was found and what to do.

GpushareError
└── PluginError
    ├── DriverError       NVML does not answer about any GPU
    │   └── DriverReplaced   the library in this process does not belong to the loaded driver
    ├── StateError        the state file is not what was written
    ├── ListTooLong       the node has more units than the kubelet accepts in one message
    ├── CheckpointError   the kubelet's checkpoint is missing or cannot be read
    ├── KubeletError      the kubelet's /pods gave no usable answer
    ├── FolderDeleted     the kubelet's folder was deleted under its mount
    ├── NoMatch           no pod, or no single one, matches a call of the kubelet
    ├── InvalidRequest    a call asks for nothing, or is invalid
    └── Refused           a container must not start, or not on these GPUs
"""

from enum import StrEnum

from gpushare.errors import GpushareError, RestartNeeded
from gpushare.objects.model import Pod


class Reason(StrEnum):
    """Why the chosen GPU cannot be used; the reason in a pod's condition."""

    NO_DECISION = "NoDecision"
    DECISION_UNREADABLE = "DecisionUnreadable"
    CARD_UNHEALTHY = "CardUnhealthy"
    CARD_GONE = "CardGone"
    CARD_TOO_FULL = "CardTooFull"
    ANSWER_STALE = "AnswerStale"
    SETS_CARDS = "SetsVisibleDevices"
    NEEDS_RUNTIME = "NeedsNvidiaRuntime"
    EXPOSES_CARDS = "ExposesCards"


class PluginError(GpushareError):
    pass


class DriverError(PluginError):
    pass


class DriverReplaced(DriverError):
    pass


class StateError(PluginError):
    pass


class ListTooLong(PluginError):
    pass


class CheckpointError(PluginError):
    pass


class KubeletError(PluginError):
    pass


class FolderDeleted(PluginError, RestartNeeded):
    pass


class NoMatch(PluginError):
    pass


class InvalidRequest(PluginError):
    pass


class Refused(PluginError):
    """``pod`` and ``reason`` are None where the fault is not that of one pod."""

    def __init__(
        self, message: str, *, pod: Pod | None = None, reason: Reason | None = None
    ) -> None:
        super().__init__(message)
        self.pod = pod
        self.reason = reason
