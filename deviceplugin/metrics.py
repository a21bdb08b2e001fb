"""What the node half counts, in Prometheus' conventions."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from deviceplugin.devices import worst_bytes
from gpushare.cards import Health, Inventory

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
    "Device IDs that lie on another card than the one on record of their container.",
)
REGISTRATIONS: Final = Counter(
    "gpushare_deviceplugin_registrations",
    "Registrations with the kubelet, by outcome.",
    ["outcome"],
)
REPORTS_WAITING: Final = Gauge(
    "gpushare_deviceplugin_reports_waiting",
    "Pods that run and whose annotations do not say so yet.",
)
REFUSED: Final = Counter(
    "gpushare_deviceplugin_refused",
    "Containers that were not given the card that was decided on, by reason.",
    ["reason"],
)
BLOCKED: Final = Gauge(
    "gpushare_deviceplugin_blocked",
    "1 while the node offers nothing for a reason that no card has.",
    ["name"],
)
LIST_DEVICES: Final = Gauge("gpushare_deviceplugin_list_devices", "Devices in the list.")
LIST_BYTES: Final = Gauge(
    "gpushare_deviceplugin_list_bytes",
    "Size of the device list when all devices are unhealthy; the kubelet takes 4194304.",
)
LIST_REFUSED: Final = Gauge(
    "gpushare_deviceplugin_list_refused",
    "1 if the memory unit is too fine for this node, so that nothing is offered.",
)
CARDS: Final = Gauge("gpushare_deviceplugin_cards", "Cards of this node, by health.", ["health"])


def show_list(inventory: Inventory, *, is_refused: bool) -> None:
    LIST_DEVICES.set(sum(card.units for card in inventory.cards))
    LIST_BYTES.set(worst_bytes(inventory))
    LIST_REFUSED.set(is_refused)
    for health in Health:
        CARDS.labels(health.value).set(sum(card.health is health for card in inventory.cards))
