"""The reasons for which no member of a gang is placed: fixed texts, as in placement/reasons.py.

No deleted pod could change one of them, so preemption must not try.
"""

from typing import Final

from gpushare.placement.reasons import Reason

NO_POD_GROUP: Final = Reason(
    "pod names a PodGroup that does not exist in its namespace: create the PodGroup"
)
NOT_SERVED: Final = Reason(
    "pod names a PodGroup of a kind that the API server does not serve: install or switch on this "
    "kind, or state the gang in labels"
)
NOT_READABLE: Final = Reason(
    "pod names a PodGroup that gpushare's extender cannot read: let it list and watch podgroups"
)
NOT_LISTED: Final = Reason("pod names a PodGroup, and the extender has not listed PodGroups yet")
WRONG_POD_GROUP: Final = Reason(
    "pod's PodGroup states no minimum of members, or one that is not a positive integer or too "
    "large for a gang"
)
NO_MINIMUM: Final = Reason(
    "pod is a member of a gang whose minimum no member states: set the label "
    "pod-group.scheduling.sigs.k8s.io/min-available"
)
WRONG_MINIMUM: Final = Reason(
    "a member of the pod's gang has a label pod-group.scheduling.sigs.k8s.io/min-available that is "
    "not a positive integer or too large for a gang"
)
NO_COUNT: Final = Reason(
    "pod is a member of a gang whose size no member states: set the annotation "
    "kueue.x-k8s.io/pod-group-total-count"
)
WRONG_COUNT: Final = Reason(
    "a member of the pod's gang has an annotation kueue.x-k8s.io/pod-group-total-count that is not "
    "a positive integer or too large for a gang"
)
WRONG_ZONE: Final = Reason(
    "a member of the pod's gang has an annotation gpushare.aliyun.com/gang-zone that is not the "
    "key of a node label"
)
TWO_ZONES: Final = Reason(
    "the pod's gang names different node labels for its zone: use one key in all annotations "
    "gpushare.aliyun.com/gang-zone and in the topology of the PodGroup"
)
NOT_ASKED: Final = Reason(
    "a member of the pod's gang is left to a scheduler (spec.schedulerName) that does not ask "
    "gpushare's extender: give all members the name of one that does"
)
TOO_MANY: Final = Reason("the pod's gang has more members than gpushare plans together")

# Of a gang in which nothing is wrong.
FEW_MEMBERS: Final = Reason("gang waits for more members")
BEING_PLANNED: Final = Reason("gang is being planned: the pod is tried again shortly")
NO_ROOM: Final = Reason("no room for the gang as a whole")
SURPLUS: Final = Reason("gang places its minimum first")
ONE_BY_ONE: Final = Reason("gang waits until each member up to the minimum fits its node")
BROKEN: Final = Reason("gang did not get its minimum in time, and its members are evicted")
NO_NODE: Final = Reason("node that is reserved for the member does not fit it, and no other does")
OTHER_ZONE: Final = Reason("node is not in the zone of the gang")
UNKNOWN_ZONE: Final = Reason(
    "gang waits until it is known whether a member was bound to a node that is gone"
)
NO_SLOT: Final = Reason("nothing is reserved for the member of a gang: it is tried again")

TEXTS: Final = tuple(each.text for each in tuple(vars().values()) if isinstance(each, Reason))
