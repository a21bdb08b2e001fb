"""The reasons for which a pod waits although GPUs may have room: fixed texts (pure).

As in placement/reasons.py. No deleted pod of another namespace could change one of them, so
preemption must not try.
"""

from typing import Final

from gpushare.placement.reasons import Reason

OVER_QUOTA: Final = Reason(
    "pod's namespace has too little left of its quota (gpushare.aliyun.com/quota)"
)
OVER_MODEL_QUOTA: Final = Reason(
    "pod's namespace has too little left of its quota for this model of GPU "
    "(gpushare.aliyun.com/quota)"
)
WRONG_QUOTA: Final = Reason(
    "annotation gpushare.aliyun.com/quota of the pod's namespace cannot be read"
)
NAMESPACE_ENDS: Final = Reason("pod's namespace is being deleted")
NOT_ADMITTED: Final = Reason("pod waits in the queue")

TEXTS: Final = tuple(each.text for each in tuple(vars().values()) if isinstance(each, Reason))
