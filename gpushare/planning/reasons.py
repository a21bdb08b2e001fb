"""The reasons for which a gang, or a member with a slot, gets no room: fixed texts (pure).

kube-scheduler writes them into the pod's condition, as it does those of placement/reasons.py.
"""

from typing import Final

from gpushare.placement.reasons import Reason

NO_ROOM_FOR_GANG: Final = Reason("nodes have too little room for all members of the gang together")
NO_ZONE_FOR_GANG: Final = Reason("no zone has room for all members of the gang together")
NO_ZONES: Final = Reason("no node has the label whose value all members of the gang must share")
NO_ROLE: Final = Reason("no zone is for gangs that use this number of GPUs")
TOO_MANY_KINDS: Final = Reason(
    "members of the gang differ too much to be planned together: give them equal requests and node "
    "selectors, or split the gang"
)
UNREADABLE_MEMBER: Final = Reason("a member of the gang requests what no node can satisfy")

# For a single slot; also those of placement/reasons.py.
NODE_GONE: Final = Reason("the node of the reserved slot does not exist")
NODE_RULES: Final = Reason("the node of the reserved slot accepts the pod no longer")
NO_RESOURCES: Final = Reason(
    "the node of the reserved slot has too little CPU, memory or other resources left"
)
OTHER_REQUEST: Final = Reason("the reserved slot is for another request than that of the pod")
