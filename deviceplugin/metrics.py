"""The metrics of the device plugin; more are read on request by ``usage.card_metrics``."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from deviceplugin.errors import Reason
from gpushare.contract import (
    METRIC_OTHERS_USED,
    METRIC_POD_ASKED,
    METRIC_POD_LIMIT,
    METRIC_POD_SM,
    METRIC_POD_USED,
)

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0)

CALLS: Final = Counter(
    "gpushare_deviceplugin_calls",
    "Calls of the kubelet, by outcome.",
    ["call", "outcome"],
)
CALL_SECONDS: Final = Histogram(
    "gpushare_deviceplugin_call_seconds",
    "Time to answer a call of the kubelet.",
    ["call"],
    buckets=_BUCKETS,
)
FOUND: Final = Counter(
    "gpushare_deviceplugin_pods_found",
    "How the pod of an Allocate was found.",
    ["how"],
)
IDS_OFF_CARD: Final = Counter(
    "gpushare_deviceplugin_ids_off_card",
    "Device IDs of another GPU than the one that their container was assigned.",
)
REFUSED_CONNECTIONS: Final = Counter(
    "gpushare_deviceplugin_refused_connections",
    "Connections closed because the HTTP port had as many as it takes.",
)
REGISTRATIONS: Final = Counter(
    "gpushare_deviceplugin_registrations",
    "Registrations with the kubelet, by outcome.",
    ["outcome"],
)
REGISTERED: Final = Gauge(
    "gpushare_deviceplugin_registered",
    "1 while the kubelet reads the plugin's device list.",
)
LOST: Final = Counter(
    "gpushare_deviceplugin_registrations_lost",
    "Registrations that ended, by cause.",
    ["cause"],
)
CRASHES: Final = Gauge(
    "gpushare_deviceplugin_crashes",
    "Processes of the plugin's container that crashed or were killed before this one.",
)
REPORTS_WAITING: Final = Gauge(
    "gpushare_deviceplugin_reports_waiting",
    "Pods that run and whose annotations do not yet say so.",
)
FORGOTTEN: Final = Gauge(
    "gpushare_deviceplugin_forgotten_pods",
    "Pods that run with a share and are not in the kubelet's checkpoint.",
)
NEVER_ASKED_FOR: Final = Gauge(
    "gpushare_deviceplugin_never_asked_for_pods",
    "Pods that run with a share and for which the kubelet never asked the plugin.",
)
REFUSED: Final = Counter(
    "gpushare_deviceplugin_refused",
    "Containers that were not given the GPU that was chosen for them, by reason.",
    ["reason"],
)
for _each in Reason:
    REFUSED.labels(_each.value)  # from 0: Prometheus sees no increase in a series that starts at 1
LIMITS_MISSING: Final = Gauge(
    "gpushare_deviceplugin_limits_missing",
    "Containers that run without the memory limit that they were given.",
)
BLOCKED: Final = Gauge(
    "gpushare_deviceplugin_blocked",
    "1 while the node offers nothing for a reason that concerns the whole node.",
    ["name"],
)
LIST_DEVICES: Final = Gauge("gpushare_deviceplugin_list_devices", "Devices in the list.")
LIST_BYTES: Final = Gauge(
    "gpushare_deviceplugin_list_bytes",
    "Size of the device list when all devices are unhealthy; the kubelet accepts 4194304.",
)
LIST_REFUSED: Final = Gauge(
    "gpushare_deviceplugin_list_refused",
    "1 if the memory unit is too small for this node, so that nothing is offered.",
)
LIST_WARNINGS: Final = Gauge(
    "gpushare_deviceplugin_list_warnings",
    "1 if the memory unit makes more units than recommended, by the reason of the Event.",
    ["reason"],
)
INJECTION: Final = Gauge(
    "gpushare_deviceplugin_injection",
    "1 for how new containers get access to GPUs: cdi, runtime or runtime-cdi.",
    ["injection"],
)
BINDING: Final = Gauge(
    "gpushare_deviceplugin_binding",
    "1 for the binding that new containers get.",
    ["binding"],
)
CARDS: Final = Gauge("gpushare_deviceplugin_cards", "GPUs of this node, by health.", ["health"])
CARD_STATE: Final = Gauge(
    "gpushare_deviceplugin_card_state",
    "1 for the state that a GPU is in, with the reason for it where it is not healthy.",
    ["card", "state", "reason"],
)
FAILING_QUERIES: Final = Gauge(
    "gpushare_deviceplugin_failing_queries",
    "1 for a query of NVML that keeps failing for a GPU, which is offered without it.",
    ["card", "query"],
)
EVENT_CARDS: Final = Gauge(
    "gpushare_deviceplugin_event_cards",
    "GPUs whose events the driver delivers; the others are only polled.",
)
XIDS: Final = Counter("gpushare_deviceplugin_xids", "XIDs of the driver.", ["card", "xid"])
RECOVERIES: Final = Counter(
    "gpushare_deviceplugin_recoveries", "Times that a GPU became healthy again.", ["card"]
)
STATE_ERRORS: Final = Counter(
    "gpushare_deviceplugin_state_errors",
    "Times that the state file could not be read or written.",
    ["what"],
)

# Without processes (--process-memory), only on GPUs whose driver can limit memory. The container is
# empty for what a pod has outside of its running containers.
_CONTAINER_ON_CARD: Final = ("namespace", "pod", "container", "card", "uuid")
POD_USED: Final = Gauge(
    METRIC_POD_USED,
    "MiB of a GPU that a container uses.",
    _CONTAINER_ON_CARD,
)
POD_ASKED: Final = Gauge(
    METRIC_POD_ASKED,
    "MiB of a GPU that a container asked for.",
    _CONTAINER_ON_CARD,
)
POD_SM: Final = Gauge(
    METRIC_POD_SM,
    "Percent of a GPU's multiprocessors that a container uses; only with --process-memory.",
    _CONTAINER_ON_CARD,
)
POD_LIMIT: Final = Gauge(
    METRIC_POD_LIMIT,
    "MiB of a GPU to which the driver limits a container.",
    _CONTAINER_ON_CARD,
)
OTHERS_USED: Final = Gauge(
    METRIC_OTHERS_USED,
    "MiB of a GPU that processes of no live pod use; only with --process-memory.",
    ("card", "uuid", "by"),
)
