"""The counters that the extender increments, in Prometheus conventions."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

REQUESTS: Final = Counter(
    "gpushare_extender_requests",
    "Calls. Outcomes: some or none (nodes or proposals are left), not_watched (the pod is not "
    "known yet), elsewhere (bound already), unknown (no answer from the API server). A call "
    "forwarded to the leader counts on both replicas.",
    ("verb", "outcome"),
)
SECONDS: Final = Histogram(
    "gpushare_extender_request_duration_seconds",
    "Time to answer a call; kube-scheduler gives up after 5 s.",
    ("verb",),
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
)

EVICTIONS: Final = Counter(
    "gpushare_extender_evictions",
    "Pods evicted because their decision cannot be kept.",
    ("reason",),
)
RELEASES: Final = Counter(
    "gpushare_extender_releases",
    "Attempts to release a gated pod. refused: by a right or policy; unknown: tried again.",
    ("outcome",),
)

REFUSED_CONNECTIONS: Final = Counter(
    "gpushare_extender_refused_connections",
    "Connections closed at once because the listener had as many as it takes.",
    ("listener",),
)
FORWARDED: Final = Counter(
    "gpushare_extender_forwarded",
    "Calls forwarded to the leader, by HTTP status. silent_leader: it answered no call before.",
    ("outcome",),
)
VIEWERS: Final = Gauge("gpushare_extender_viewers", "Connected live pages.")
WRITES_HELD_BACK: Final = Counter(
    "gpushare_extender_writes_held_back",
    "Writes that were not started because the lease might have ended before them.",
)
BROKEN_GANGS: Final = Counter(
    "gpushare_extender_broken_gangs",
    "Gangs of which members were bound and that did not get their minimum in time.",
)
PLANS: Final = Counter(
    "gpushare_extender_gang_plans",
    "Plans for gangs and gated pods. given_up: too many combinations, or kinds of members.",
    ("outcome",),
)
PLAN_SECONDS: Final = Histogram(
    "gpushare_extender_gang_plan_duration_seconds",
    "Time to make a plan for a gang or gated pod, with pauses for other calls.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5),
)
PREEMPTION_PLANS: Final = Counter(
    "gpushare_extender_preemption_plans",
    "Searches for pods to evict. ending: pods that end anyway suffice; given_up: too many "
    "combinations.",
    ("outcome",),
)
PREEMPTION_VICTIMS: Final = Counter(
    "gpushare_extender_preemption_victims", "Pods evicted for waiting pods or gangs."
)
PREEMPTION_VETOES: Final = Counter(
    "gpushare_extender_preemption_vetoes",
    "Rejected proposals of kube-scheduler's preemption. smaller: the extender evicts a less "
    "important or smaller pod.",
    ("reason",),
)
PREEMPTIONS_IN_VAIN: Final = Counter(
    "gpushare_extender_preemptions_in_vain",
    "Pods and gangs for which other pods were evicted and that did not get their memory.",
)
WAKE_UPS: Final = Counter(
    "gpushare_extender_wake_ups",
    "Waiting pods changed so that kube-scheduler tries them again.",
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
        "over_quota",
        "smaller",
    ),
    WAKE_UPS: ("poked", "refused"),
}
for _verb in ("filter", "preempt"):
    for _outcome in ("some", "none"):
        REQUESTS.labels(_verb, _outcome)
for _counter, _values in _KNOWN.items():
    for _value in _values:
        _counter.labels(_value)
