"""Errors of the node half. Each text says what was wanted, what was found and what to do.

GpushareError
└── PluginError
    ├── DriverError       NVML gives no answer about any card
    ├── ListTooLong       the node has more units than the kubelet takes in one message
    ├── CheckpointError   the kubelet's checkpoint is not there or cannot be read
    ├── KubeletError      the kubelet's /pods gave no usable answer
    ├── NoMatch           no pod, or no single one, is meant by a call of the kubelet
    └── Refused           a container must not start, or not on these cards
"""

from gpushare.errors import GpushareError


class PluginError(GpushareError):
    pass


class DriverError(PluginError):
    pass


class ListTooLong(PluginError):
    pass


class CheckpointError(PluginError):
    pass


class KubeletError(PluginError):
    pass


class NoMatch(PluginError):
    pass


class Refused(PluginError):
    pass
