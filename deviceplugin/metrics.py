"""What the node half counts, in Prometheus' conventions."""

from collections.abc import Collection, Mapping
from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from deviceplugin.cards.device_list import worst_bytes
from deviceplugin.errors import Reason
from deviceplugin.usage.card_metrics import CARD_DETAIL
from deviceplugin.usage.rules import Usage
from gpushare.cards.model import Inventory

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
REGISTERED: Final = Gauge(
    "gpushare_deviceplugin_registered",
    "1 while the kubelet reads our device list.",
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
    "Pods that run and whose annotations do not say so yet.",
)
FORGOTTEN: Final = Gauge(
    "gpushare_deviceplugin_forgotten_pods",
    "Pods that run with a share and are not in the kubelet's checkpoint.",
)
NEVER_ASKED_FOR: Final = Gauge(
    "gpushare_deviceplugin_never_asked_for_pods",
    "Pods that run with a share and for which the kubelet has never asked the plugin.",
)
REFUSED: Final = Counter(
    "gpushare_deviceplugin_refused",
    "Containers that were not given the card that was decided on, by reason.",
    ["reason"],
)
for _each in Reason:
    REFUSED.labels(_each.value)  # from 0: what begins at 1 is no increase to Prometheus
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
LIST_WARNINGS: Final = Gauge(
    "gpushare_deviceplugin_list_warnings",
    "1 if the memory unit makes more units than goes well, by the reason of the Event.",
    ["reason"],
)
INJECTION: Final = Gauge(
    "gpushare_deviceplugin_injection",
    "1 for what opens cards to new containers: cdi, runtime or runtime-cdi.",
    ["injection"],
)
BINDING: Final = Gauge(
    "gpushare_deviceplugin_binding",
    "1 for the binding that new containers get.",
    ["binding"],
)
CARDS: Final = Gauge("gpushare_deviceplugin_cards", "Cards of this node, by health.", ["health"])
CARD_STATE: Final = Gauge(
    "gpushare_deviceplugin_card_state",
    "1 for the state that a card is in, with the reason for it where it is not well.",
    ["card", "state", "reason"],
)
EVENT_CARDS: Final = Gauge(
    "gpushare_deviceplugin_event_cards",
    "Cards whose events the driver delivers; the others are only polled.",
)
XIDS: Final = Counter("gpushare_deviceplugin_xids", "XIDs of the driver.", ["card", "xid"])
RECOVERIES: Final = Counter(
    "gpushare_deviceplugin_recoveries", "Illnesses that a card has got over.", ["card"]
)
STATE_ERRORS: Final = Counter(
    "gpushare_deviceplugin_state_errors",
    "Times that the state file could not be read or written.",
    ["what"],
)

_POD_ON_CARD: Final = ("namespace", "pod", "card", "uuid")
POD_USED: Final = Gauge(
    "gpushare_deviceplugin_pod_used_mib",
    "MiB of a card that the processes of a pod use; only with --process-memory.",
    _POD_ON_CARD,
)
POD_ASKED: Final = Gauge(
    "gpushare_deviceplugin_pod_asked_mib",
    "MiB of a card that a pod asked for; only with --process-memory.",
    _POD_ON_CARD,
)
OTHERS_USED: Final = Gauge(
    "gpushare_deviceplugin_others_used_mib",
    "MiB of a card that processes of no living pod use; only with --process-memory.",
    ("card", "uuid", "by"),
)

_STATES: Final = ("healthy", "suspect", "unhealthy", "recovering", "gone", "mig")
_WARNINGS: Final = ("DeviceListLarge", "CardUnitsMany")


def show_usage(usage: Usage, inventory: Inventory | None) -> None:
    """Replace all series: what is not in ``usage`` is gone. The index of an unknown card is "".

    Nothing is awaited between, so no scrape sees half of it.
    """
    index = {card.uuid: str(card.index) for card in inventory.cards} if inventory else {}
    for gauge in (POD_USED, POD_ASKED, OTHERS_USED):
        gauge.clear()
    for use in usage.pods:
        meta = use.pod.metadata
        labels = (meta.namespace, meta.name, index.get(use.uuid, ""), use.uuid)
        POD_ASKED.labels(*labels).set(use.asked_mib)
        if use.used_mib is not None:
            POD_USED.labels(*labels).set(use.used_mib)
    for (uuid, by), used_mib in usage.others.items():
        if used_mib is not None:
            OTHERS_USED.labels(index.get(uuid, ""), uuid, by).set(used_mib)


def show_list(inventory: Inventory, *, is_refused: bool, warnings: Collection[str] = ()) -> None:
    LIST_DEVICES.set(sum(card.units for card in inventory.cards))
    LIST_BYTES.set(worst_bytes(inventory))
    LIST_REFUSED.set(is_refused)
    for reason in _WARNINGS:
        LIST_WARNINGS.labels(reason).set(reason in warnings)


def show_cards(
    inventory: Inventory, states: Mapping[str, tuple[str, str]], unreadable: int
) -> None:
    """What is offered, each card's own state and the reason for it, and how many never answered.

    The reason stands beside the present state; nothing is awaited while the last one is replaced.
    """
    CARD_DETAIL.inventory = inventory
    healths = [
        "mig" if states[card.uuid][0] == "mig" else card.health.value for card in inventory.cards
    ]
    for health in ("healthy", "unhealthy", "mig"):
        CARDS.labels(health).set(healths.count(health))
    CARDS.labels("unreadable").set(unreadable)
    CARD_STATE.clear()
    for uuid, (now, reason) in states.items():
        for state in _STATES:
            CARD_STATE.labels(uuid, state, reason if state == now else "").set(state == now)
