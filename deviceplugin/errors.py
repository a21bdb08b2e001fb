"""Errors of the device plugin. Each text says what was expected, what was found and what to do."""

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
    SETS_LIMITS = "SetsMemoryLimits"
    NOT_LIMITED = "MemoryNotLimited"
    LIMIT_MISSING = "MemoryLimitMissing"
    LIMIT_CHANGED = "MemoryLimitChanged"
    NEEDS_RUNTIME = "NeedsNvidiaRuntime"
    EXPOSES_CARDS = "ExposesCards"


class PluginError(GpushareError):
    """An error of the device plugin."""


class DriverError(PluginError):
    """NVML does not answer about any GPU."""


class DriverReplaced(DriverError):
    """The library in this process does not belong to the loaded driver."""


class StateError(PluginError):
    """The state file is not what was written."""


class ListTooLong(PluginError):
    """The node has more units than the kubelet accepts in one message."""


class CheckpointError(PluginError):
    """The kubelet's checkpoint is missing or cannot be read."""


class KubeletError(PluginError):
    """The kubelet's /pods gave no usable answer."""


class FolderDeleted(PluginError, RestartNeeded):
    """The kubelet's folder was deleted under its mount."""


class NoMatch(PluginError):
    """No pod, or no single one, matches a call of the kubelet."""


class InvalidRequest(PluginError):
    """A call asks for nothing, or is invalid."""


class Refused(PluginError):
    """A container must not start, or not on these GPUs.

    ``pod`` and ``reason`` are None where the fault is not that of one pod.
    """

    def __init__(
        self, message: str, *, pod: Pod | None = None, reason: Reason | None = None
    ) -> None:
        super().__init__(message)
        self.pod = pod
        self.reason = reason
