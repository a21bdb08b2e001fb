"""How long a kubelet's device list may be: the limits that the plugin keeps and doctor looks at.

The kubelet takes 4,194,304 bytes a message (it dials with gRPC's default limit). A device of ours
costs 13 bytes and its ID, two more when Unhealthy.
"""

from typing import Final

MAX_MESSAGE_BYTES: Final = 4_194_304
ID_LENGTH: Final = 5
UNHEALTHY: Final = "Unhealthy"
WORST_DEVICE_BYTES: Final = 2 + 2 + ID_LENGTH + 2 + len(UNHEALTHY)
MAX_DEVICES: Final = MAX_MESSAGE_BYTES // WORST_DEVICE_BYTES
WARN_DEVICES: Final = 100_000
WARN_CARD_UNITS: Final = 70_000
