"""The counters that the extender increments, in Prometheus conventions."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

REQUESTS: Final = Counter(
    "gpushare_extender_requests", "Calls of a verb by outcome.", ("verb", "outcome")
)
SECONDS: Final = Histogram(
    "gpushare_extender_request_duration_seconds",
    "Time to answer a call of a verb.",
    ("verb",),
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
)

EVICTIONS: Final = Counter(
    "gpushare_extender_evictions",
    "Pods evicted because their decision could not be kept, by reason.",
    ("reason",),
)
RELEASES: Final = Counter(
    "gpushare_extender_releases",
    "Gated pods whose release was attempted, by outcome.",
    ("outcome",),
)

REFUSED_CONNECTIONS: Final = Counter(
    "gpushare_extender_refused_connections",
    "Connections closed at once because a listener had as many as it takes.",
    ("listener",),
)
FORWARDED: Final = Counter(
    "gpushare_extender_forwarded", "Deciding calls handed to the leader, by outcome.", ("outcome",)
)
VIEWERS: Final = Gauge("gpushare_extender_viewers", "Streams of changes to live pages, now.")
WRITES_HELD_BACK: Final = Counter(
    "gpushare_extender_writes_held_back",
    "Writes that were not begun because the lease might have ended before they did.",
)
BROKEN_GANGS: Final = Counter(
    "gpushare_extender_broken_gangs", "Gangs that did not get their minimum in time."
)
PLANS: Final = Counter(
    "gpushare_extender_gang_plans", "Plans made for gangs and gated pods, by outcome.", ("outcome",)
)
PLAN_SECONDS: Final = Histogram(
    "gpushare_extender_gang_plan_duration_seconds",
    "Time to make a plan, with pauses for other work.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
)
PREEMPTION_PLANS: Final = Counter(
    "gpushare_extender_preemption_plans",
    "Searches for pods to evict for a waiting pod or gang, by outcome.",
    ("outcome",),
)
PREEMPTION_VICTIMS: Final = Counter(
    "gpushare_extender_preemption_victims", "Pods evicted for waiting pods or gangs."
)
PREEMPTION_VETOES: Final = Counter(
    "gpushare_extender_preemption_vetoes",
    "Proposals of kube-scheduler for evictions that were rejected, by reason.",
    ("reason",),
)
PREEMPTIONS_IN_VAIN: Final = Counter(
    "gpushare_extender_preemptions_in_vain",
    "Pods and gangs for which pods were evicted and that did not get the room.",
)
WAKE_UPS: Final = Counter(
    "gpushare_extender_wake_ups",
    "Waiting pods changed so that kube-scheduler tries them again, by outcome.",
    ("outcome",),
)

# All start at 0: Prometheus misses an increase from nothing to 1.
_KNOWN: Final = {
    PLANS: ("fits", "no_room", "given_up"),
    PREEMPTION_PLANS: ("victims", "ending", "no_victims", "given_up"),
    PREEMPTION_VETOES: (
        "no_room",
        "breaks_gang",
        "member_of_gang",
        "own_eviction",
        "room_is_made",
        "no_victims",
        "fits",
        "request",
    ),
    WAKE_UPS: ("poked", "refused"),
}
for _counter, _values in _KNOWN.items():
    for _value in _values:
        _counter.labels(_value)
