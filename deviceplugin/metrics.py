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
    "Calls of the kubelet.",
    ["call", "outcome"],
)
CALL_SECONDS: Final = Histogram(
    "gpushare_deviceplugin_call_seconds",
    "Time to answer a call of the kubelet; keep it below 3 s.",
    ["call"],
    buckets=_BUCKETS,
)
FOUND: Final = Counter(
    "gpushare_deviceplugin_pods_found",
    "How the pod of a call of Allocate was found. later: when it starts.",
    ["how"],
)
IDS_OFF_CARD: Final = Counter(
    "gpushare_deviceplugin_ids_off_card",
    "Device IDs of another GPU than the one that their container was given; harmless.",
)
REFUSED_CONNECTIONS: Final = Counter(
    "gpushare_deviceplugin_refused_connections",
    "Connections closed because the HTTP port had as many as it takes.",
)
REGISTRATIONS: Final = Counter(
    "gpushare_deviceplugin_registrations",
    "Registrations with the kubelet.",
    ["outcome"],
)
REGISTERED: Final = Gauge(
    "gpushare_deviceplugin_registered",
    "1 while the kubelet reads the plugin's device list.",
)
LOST: Final = Counter(
    "gpushare_deviceplugin_registrations_lost",
    "Registrations that ended. socket: it was deleted; stream: it was closed.",
    ["cause"],
)
CRASHES: Final = Gauge(
    "gpushare_deviceplugin_crashes",
    "Processes of the plugin's container that crashed or were killed before this one.",
)
REPORTS_WAITING: Final = Gauge(
    "gpushare_deviceplugin_reports_waiting",
    "Running pods that the plugin has not yet annotated with their GPU.",
)
FORGOTTEN: Final = Gauge(
    "gpushare_deviceplugin_forgotten_pods",
    "Running pods with GPU memory that are missing in the kubelet's checkpoint (DevicesForgotten).",
)
NEVER_ASKED_FOR: Final = Gauge(
    "gpushare_deviceplugin_never_asked_for_pods",
    "Running pods with GPU memory for which the kubelet never called the plugin "
    "(StartedWithoutPlugin).",
)
REFUSED: Final = Counter(
    "gpushare_deviceplugin_refused",
    "Rejected starts of containers, by the reason in the pod's condition.",
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
    "1 while the whole node offers nothing for this reason.",
    ["name"],
)
LIST_DEVICES: Final = Gauge(
    "gpushare_deviceplugin_list_devices",
    "Devices in the list for the kubelet; keep it below 100,000.",
)
LIST_BYTES: Final = Gauge(
    "gpushare_deviceplugin_list_bytes",
    "Bytes of the device list; the kubelet's limit is 4194304.",
)
LIST_REFUSED: Final = Gauge(
    "gpushare_deviceplugin_list_refused",
    "1 if the memory unit is too small for the node.",
)
LIST_WARNINGS: Final = Gauge(
    "gpushare_deviceplugin_list_warnings",
    "1 if the memory unit makes more units than recommended: DeviceListLarge (of the node) or "
    "CardUnitsMany (of one GPU).",
    ["reason"],
)
INJECTION: Final = Gauge(
    "gpushare_deviceplugin_injection",
    "1 for the way in which new containers get their GPU.",
    ["injection"],
)
BINDING: Final = Gauge(
    "gpushare_deviceplugin_binding",
    "1 for the binding of new containers.",
    ["binding"],
)
CARDS: Final = Gauge(
    "gpushare_deviceplugin_cards",
    "GPUs of the node.",
    ["health"],
)
CARD_STATE: Final = Gauge(
    "gpushare_deviceplugin_card_state",
    "1 for the state of a GPU. Reasons: advice (of the driver), rows, repair and ecc (of its "
    "memory), duplicate (its UUID), silent (it hangs), earlier (before the plugin started).",
    ["card", "state", "reason"],
)
FAILING_QUERIES: Final = Gauge(
    "gpushare_deviceplugin_failing_queries",
    "1 for a query of NVML that keeps failing for a GPU (CardQueryFails).",
    ["card", "query"],
)
EVENT_CARDS: Final = Gauge(
    "gpushare_deviceplugin_event_cards",
    "GPUs of which the driver delivers events; others are polled.",
)
XIDS: Final = Counter(
    "gpushare_deviceplugin_xids", "XIDs that the driver reported for a GPU.", ["card", "xid"]
)
RECOVERIES: Final = Counter(
    "gpushare_deviceplugin_recoveries", "Times that a GPU became healthy again.", ["card"]
)
STATE_ERRORS: Final = Counter(
    "gpushare_deviceplugin_state_errors",
    "Failures to read or write the state file.",
    ["what"],
)

# Without processes (--process-memory), only on GPUs whose driver can limit memory. The container is
# empty for what a pod has outside of its running containers.
_CONTAINER_ON_CARD: Final = ("namespace", "pod", "container", "card", "uuid")
POD_USED: Final = Gauge(
    METRIC_POD_USED,
    "MiB of GPU memory that a container uses; container is empty for other processes of "
    "the pod. Needs process-memory, or a driver that limits memory.",
    _CONTAINER_ON_CARD,
)
POD_ASKED: Final = Gauge(
    METRIC_POD_ASKED,
    "MiB of GPU memory that a container requested. container is empty for the rest of the pod's "
    "share.",
    _CONTAINER_ON_CARD,
)
POD_SM: Final = Gauge(
    METRIC_POD_SM,
    "SM utilization: percentage of time in which a kernel of the container ran on the GPU. Needs "
    "process-memory.",
    _CONTAINER_ON_CARD,
)
POD_LIMIT: Final = Gauge(
    METRIC_POD_LIMIT,
    "MiB of GPU memory to which the driver limits a container.",
    _CONTAINER_ON_CARD,
)
OTHERS_USED: Final = Gauge(
    METRIC_OTHERS_USED,
    "MiB of GPU memory that processes outside of living pods use: host, ended-pod, unknown. Needs "
    "process-memory.",
    ("card", "uuid", "by"),
)
