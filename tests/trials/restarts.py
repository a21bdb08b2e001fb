"""Kill the extender that has no replicas, also while its last Binding is on the way."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http import HTTPStatus
from typing import Final

from localcluster.errors import ApiError
from localcluster.wait import wait_until
from tests.cluster.expect import bind
from tests.fakes.apiserver_proxy import Kind, binds
from tests.trials.stage import PODS, UNITS, Stage, small_pod

FILTER: Final = "/gpushare-scheduler/filter"
NETWORK: Final = "network"
# What delays the Binding; nothing, to compare with.
DELAYS: Final = ("", NETWORK, "kube-apiserver", "etcd")
LATE_SECONDS: Final = 2.5  # less than a write may last
STALLED_SECONDS: Final = 2.0
MOST_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.01


def restart(stage: Stage) -> None:
    """Kill the extender and start it at once."""
    stage.cluster.stop("extender", grace=0)
    stage.cluster.start("extender")


def wait_served(stage: Stage, began: float) -> float:
    """Return how long after ``began`` the extender answers filter."""
    question = {"Pod": small_pod("asks", 1), "NodeNames": []}

    def unanswered() -> str | None:
        try:
            status, found = stage.gpushare.call("POST", FILTER, question)
        except ApiError as err:
            return str(err)
        return None if status == HTTPStatus.OK else str(found)

    what = "the extender to serve again"
    wait_until(what, unanswered, seconds=MOST_SECONDS, interval=POLL_SECONDS)
    return time.monotonic() - began


def kill_during_a_binding(
    stage: Stage, node: str, cards: int, delay: str
) -> tuple[float, list[str]]:
    """Kill the extender while it binds a pod to a whole card of an empty node, and fill that node.

    Return the seconds until the next pod was bound, from the end of a stalled component on, and
    what was wrong. ``delay`` is one of DELAYS.
    """
    is_stalled = delay not in {"", NETWORK}
    uids = {name: _created(stage, name) for name in ("late", *map("other-{}".format, range(cards)))}
    waiting = len(uids)
    wait_until(
        "the pods to be known",
        lambda: None if stage.metric("gpushare_extender_pending_pods") == waiting else "not yet",
        seconds=MOST_SECONDS,
    )
    late = uids.pop("late")
    with ThreadPoolExecutor(1) as pool:
        if is_stalled:
            stage.cluster.kill(delay, signal.SIGSTOP)
        if delay:
            seconds = 0.0 if is_stalled else LATE_SECONDS
            fault = stage.proxy.fault(Kind.LATE, binds, seconds=seconds)
            pool.submit(_bind_without_answer, stage, late, node)
            on_its_way = "the Binding to be on its way"
            wait_until(on_its_way, lambda: None if fault.met else "not yet", seconds=MOST_SECONDS)
        began = time.monotonic()
        restart(stage)
        if is_stalled:
            time.sleep(max(0.0, began + STALLED_SECONDS - time.monotonic()))
            began = time.monotonic()
            stage.cluster.kill(delay, signal.SIGCONT)
        wait_served(stage, began)
        took, refusals = 0.0, []
        for name, uid in uids.items():
            why = bind(stage.gpushare, name, uid, node)
            took = took or (0.0 if why else time.monotonic() - began)
            refusals += [why] if why else []
    if delay:
        wait_until(
            "the late Binding to land",
            lambda: None if stage.was_bound("late") else "it is not bound",
            seconds=MOST_SECONDS,
        )
    wrong = stage.judge()
    if len(refusals) != int(bool(delay)):
        wrong.append(f"{len(refusals)} of {cards} pods were rejected: {refusals}")
    stage.clear()
    return took, wrong


def _created(stage: Stage, name: str) -> str:
    """Create a pod for a whole card, which only we bind; return its uid."""
    with stage.cluster.api() as api:
        made = api.request("POST", PODS, small_pod(name, UNITS, schedulerName="nobody"))
    return str(made["metadata"]["uid"])


def _bind_without_answer(stage: Stage, uid: str, node: str) -> None:
    with suppress(ApiError):
        bind(stage.gpushare, "late", uid, node)
