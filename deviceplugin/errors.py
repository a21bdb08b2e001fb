"""Errors of the node half. Each text says what was wanted, what was found and what to do.

GpushareError
└── PluginError
    ├── DriverError       NVML gives no answer about any card
    │   └── DriverReplaced   the library in this process is not the loaded driver's any more
    ├── StateError        what was kept on disk is not what was written
    ├── ListTooLong       the node has more units than the kubelet takes in one message
    ├── CheckpointError   the kubelet's checkpoint is not there or cannot be read
    ├── KubeletError      the kubelet's /pods gave no usable answer
    ├── FolderGone        the kubelet's folder was deleted under its mount
    ├── NoMatch           no pod, or no single one, is meant by a call of the kubelet
    ├── InvalidRequest    a call that asks for nothing, or that cannot be understood
    └── Refused           a container must not start, or not on these cards
"""

from enum import StrEnum

from gpushare.errors import GpushareError, RestartNeeded
from gpushare.objects.model import Pod


class Reason(StrEnum):
    """Why a decision cannot be kept; what a pod's condition and Event say."""

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


class FolderGone(PluginError, RestartNeeded):
    pass


class NoMatch(PluginError):
    pass


class InvalidRequest(PluginError):
    pass


class Refused(PluginError):
    """``pod`` and ``reason`` are None where the fault is not one of a pod's decision."""

    def __init__(
        self, message: str, *, pod: Pod | None = None, reason: Reason | None = None
    ) -> None:
        super().__init__(message)
        self.pod = pod
        self.reason = reason
