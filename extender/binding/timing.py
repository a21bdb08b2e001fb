"""Time limits of a binding, from kube-scheduler's call to the API server's answer."""

from typing import Final

# kube-scheduler hangs up after 5 s (its httpTimeout). A read, a write and a read end before that,
# and leave time to forward the call to the leader and its answer back (``leader_proxy.SECONDS``).
ANSWER_SECONDS: Final = 4.6
WRITE_SECONDS: Final = 3.0
# A network that recovers must not deliver a write that was sent long ago. The kernel counts from
# its first retransmission, up to a second after the first transmission: so it delivers nothing any
# more once the whole time of a write is over.
UNACKNOWLEDGED_SECONDS: Final = WRITE_SECONDS - 1.0
READ_SECONDS: Final = 0.75
# With less time left a write is not begun: its outcome would too often be unknown.
LEAST_WRITE_SECONDS: Final = 1.0
SIDE_SECONDS: Final = 2.0  # evictions and Events
# A bound pod shows in our watch within milliseconds; only what is overdue is read.
OVERDUE_SECONDS: Final = 5.0
