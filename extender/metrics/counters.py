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
for _outcome in ("fits", "no_room", "given_up"):
    PLANS.labels(_outcome)  # starts at 0: Prometheus misses an increase from nothing to 1
PREEMPTION_PLANS: Final = Counter(
    "gpushare_extender_preemption_plans",
    "Searches for pods to evict for more important ones, by outcome.",
    ("outcome",),
)
PREEMPTION_VICTIMS: Final = Counter(
    "gpushare_extender_preemption_victims", "Pods evicted for more important ones."
)
PREEMPTIONS_IN_VAIN: Final = Counter(
    "gpushare_extender_preemptions_in_vain",
    "Plans of which pods were evicted and that did not become room.",
)
