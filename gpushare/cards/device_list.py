"""Limits on the kubelet's device list, which the plugin enforces and doctor checks.

The kubelet accepts 4,194,304 bytes per message, gRPC's default. A device takes 13 bytes plus its
ID, and two more if it is Unhealthy.
"""

from typing import Final

MAX_MESSAGE_BYTES: Final = 4_194_304
ID_LENGTH: Final = 5
UNHEALTHY: Final = "Unhealthy"
WORST_DEVICE_BYTES: Final = 2 + 2 + ID_LENGTH + 2 + len(UNHEALTHY)
MAX_DEVICES: Final = MAX_MESSAGE_BYTES // WORST_DEVICE_BYTES
WARN_DEVICES: Final = 100_000
WARN_CARD_UNITS: Final = 70_000
