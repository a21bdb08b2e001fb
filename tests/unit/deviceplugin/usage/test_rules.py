"""The measured use of each container on each GPU is exact, or has no value."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cards.survey import Terms, survey
from deviceplugin.driver.interface import MemoryLimit, ProcessMemory, UtilizationSample
from deviceplugin.kubelet.node_pod import NodePod
from deviceplugin.usage.cgroup_paths import Owner
from deviceplugin.usage.rules import (
    CANNOT_LIMIT,
    ENDED_POD,
    HOST,
    LASTING_SECONDS,
    NO_CGROUP,
    NO_CONTAINER,
    NOT_READ,
    REPEAT_SECONDS,
    UNKNOWN,
    ContainerUse,
    Overuse,
    PodUse,
    Reading,
    Usage,
    VisibleProcess,
    shares,
    tally,
)
from gpushare.contract import ANNOTATION_MIRROR
from gpushare.objects.model import (
    Container,
    ContainerState,
    ContainerStatus,
    PodStatus,
    Terminated,
)
from tests.fakes.driver import card
from tests.fakes.pods import RUNNING, pod

FIRST, SECOND = card(0).uuid, card(1).uuid
INVENTORY = survey(None, [card(0), card(1)], Terms(1024)).inventory
MIB = 1 << 20
ENDED = ContainerState(terminated=Terminated("2026-11-21T20:00:00Z"))
TWO = {"aliyun.com/gpu-count": "2"}


def box(number: int) -> str:
    return f"{number:064x}"


def with_status(owner: NodePod, phase: str = "Running", **states: tuple[int, ContainerState]):
    """The pod with these containers, by name with ``_`` for ``-``: number of its ID, and state."""
    statuses = tuple(
        ContainerStatus(name.replace("_", "-"), f"containerd://{box(number)}", state)
        for name, (number, state) in states.items()
    )
    status = PodStatus(phase=phase, container_statuses=statuses)
    return msgspec.structs.replace(owner, status=status)


def processes(*found: tuple[int, int | None, Owner | None]) -> dict:
    """Process ID, MiB and owner of each; all of them are visible."""
    return {
        "processes": tuple(
            ProcessMemory(pid, None if mib is None else mib * MIB) for pid, mib, _ in found
        ),
        "visible": {pid: VisibleProcess(owner, 0) for pid, _, owner in found},
    }


def measured(*readings: Reading, pods=(), **means) -> Usage:
    return tally(readings, shares(pods, INVENTORY), pods, **means)


def shown(usage: Usage) -> dict[tuple[str, str, str], tuple[int | None, int]]:
    """Pod, container and GPU to MiB used and asked for."""
    return {
        (row.pod.metadata.name, row.container, row.uuid): (row.used_mib, row.asked_mib)
        for row in usage.containers
    }


def by_pod(usage: Usage) -> dict[tuple[str, str], tuple[int | None, int]]:
    return {(use.pod.metadata.name, use.uuid): (use.used_mib, use.asked_mib) for use in usage.pods}


def test_the_processes_of_a_container_are_added_up_on_each_gpu() -> None:
    a = with_status(
        pod("a", [4, 4], cards=(FIRST, SECOND), labels=TWO),
        app_0=(1, RUNNING),
        app_1=(2, RUNNING),
    )
    one, two = Owner(a.uid, box(1)), Owner(a.uid, box(2))
    found = measured(
        Reading(FIRST, **processes((1, 300, one), (2, 200, one), (3, 7, two))),
        Reading(SECOND, **processes((1, 9, one))),
        pods=[a],
    )
    assert shown(found) == {
        ("a", "app-0", FIRST): (500, 2048),
        ("a", "app-1", FIRST): (7, 2048),
        ("a", "app-0", SECOND): (9, 2048),
        ("a", "app-1", SECOND): (0, 2048),
    }


def test_a_share_whose_containers_do_not_run_yet_uses_0() -> None:
    found = measured(Reading(FIRST, ()), Reading(SECOND, ()), pods=[pod("a", 1, cards=(FIRST,))])
    assert shown(found) == {("a", "", FIRST): (0, 1024)}


def test_what_no_running_container_has_of_the_share_is_a_row_of_its_own() -> None:
    a = pod("a", [2, 1], cards=(FIRST,), init=[8])
    starting = with_status(a, "Pending", init_0=(1, RUNNING))
    assert shown(measured(pods=[starting])) == {("a", "init-0", FIRST): (None, 8192)}
    started = with_status(a, init_0=(1, ENDED), app_0=(2, RUNNING), app_1=(3, RUNNING))
    assert shown(measured(Reading(FIRST, ()), pods=[started])) == {
        ("a", "app-0", FIRST): (0, 2048),
        ("a", "app-1", FIRST): (0, 1024),
        ("a", "", FIRST): (0, 5120),
    }


@given(st.lists(st.sampled_from([None, RUNNING, ENDED]), min_size=3, max_size=3))
def test_the_rows_of_a_pod_ask_for_its_share_in_every_state(states) -> None:
    a = pod("a", [2, 4], cards=(FIRST, SECOND), init=[8], labels=TWO)
    names = ["init_0", "app_0", "app_1"]
    pairs = {
        name: (place, state) for place, (name, state) in enumerate(zip(names, states, strict=True))
    }
    if states[0] is RUNNING:
        pairs = {"init_0": pairs["init_0"]}
    usage = measured(pods=[with_status(a, **pairs)])
    assert {key: asked for key, (_, asked) in by_pod(usage).items()} == {
        ("a", FIRST): 4096,
        ("a", SECOND): 4096,
    }


def test_a_process_in_no_known_container_still_counts_for_its_pod() -> None:
    a = with_status(pod("a", 1, cards=(FIRST,)), app_0=(1, RUNNING))
    in_none, restarted = Owner(a.uid), Owner(a.uid, box(9))
    found = processes((1, 5, Owner(a.uid, box(1))), (2, 6, in_none), (3, 7, restarted))
    usage = measured(Reading(FIRST, **found), pods=[a])
    assert shown(usage) == {("a", "app-0", FIRST): (5, 1024), ("a", "", FIRST): (13, 0)}
    assert by_pod(usage) == {("a", FIRST): (18, 1024)}


def test_a_container_that_asks_for_nothing_has_what_it_uses() -> None:
    a = pod("a", 1, cards=(FIRST,), others=(Container("sidecar"),))
    a = with_status(a, app_0=(1, RUNNING), sidecar=(2, RUNNING))
    usage = measured(Reading(FIRST, **processes((1, 5, Owner(a.uid, box(2))))), pods=[a])
    assert shown(usage) == {("a", "app-0", FIRST): (0, 1024), ("a", "sidecar", FIRST): (5, 0)}


def test_a_pod_on_a_gpu_that_it_has_not_asked_for_asked_for_0_of_it() -> None:
    a, stranger = pod("a", 1, cards=(FIRST,)), pod("stranger", 0)
    found = processes((1, 5, Owner(a.uid)), (2, 6, Owner(stranger.uid)))
    usage = measured(Reading(SECOND, **found), pods=[a, stranger])
    assert by_pod(usage)["a", SECOND] == (5, 0)
    assert by_pod(usage)["stranger", SECOND] == (6, 0)


def test_memory_that_the_driver_does_not_report_is_not_0() -> None:
    a = with_status(pod("a", 1, cards=(FIRST,)), app_0=(1, RUNNING))
    own = Owner(a.uid, box(1))
    unknown = {("a", "app-0", FIRST): (None, 1024)}
    assert shown(measured(Reading(FIRST), pods=[a])) == unknown
    assert shown(measured(pods=[a])) == unknown
    untold = processes((1, None, own), (2, 5, own))
    assert shown(measured(Reading(FIRST, **untold), pods=[a])) == unknown


def test_memory_of_the_host_and_of_ended_pods_is_separate() -> None:
    ended = with_status(pod("ended", 1, cards=(FIRST,)), "Succeeded", app_0=(1, ENDED))
    found = processes((1, 5, None), (2, 6, Owner("gone", box(3))), (3, 7, Owner(ended.uid, box(1))))
    usage = measured(Reading(FIRST, **found), pods=[ended])
    assert usage.others == {(FIRST, HOST): 5, (FIRST, ENDED_POD): 13, (FIRST, UNKNOWN): 0}
    assert usage.containers == ()


def test_pods_next_to_an_invisible_process_have_no_value() -> None:
    a, b = pod("a", 1, cards=(FIRST,)), pod("b", 1, cards=(SECOND,))
    beside = processes((1, 5, Owner(a.uid)), (9, 6, None))
    del beside["visible"][9]
    usage = measured(
        Reading(FIRST, **beside, samples=(sample(1, 50),)),
        Reading(SECOND, **processes((2, 7, Owner(b.uid))), samples=(sample(2, 60),)),
        pods=[a, b],
    )
    assert by_pod(usage) == {("a", FIRST): (None, 1024), ("b", SECOND): (7, 1024)}
    assert usage.others[FIRST, UNKNOWN] == 6
    assert [row.sm_percent for row in usage.containers] == [None, 60]


@given(
    st.dictionaries(
        st.sampled_from([FIRST, SECOND]), st.lists(st.tuples(st.integers(1, 6), st.integers(0, 99)))
    )
)
def test_every_reported_mib_is_counted_once(found) -> None:
    a = with_status(pod("a", 1, cards=(FIRST,)), app_0=(1, RUNNING))
    b = pod("b", 1, cards=(SECOND,))
    owners = [Owner(a.uid, box(1)), Owner(b.uid), None, Owner("gone"), Owner(a.uid), Owner(b.uid)]
    readings = [
        Reading(uuid, **processes(*((pid, amount, owners[pid - 1]) for pid, amount in amounts)))
        for uuid, amounts in found.items()
    ]
    usage = measured(*readings, pods=[a, b])
    for uuid, amounts in found.items():
        counted = sum(row.used_mib or 0 for row in usage.containers if row.uuid == uuid)
        counted += sum(amount or 0 for (on, _), amount in usage.others.items() if on == uuid)
        assert counted == sum(amount for _, amount in amounts)


def sample(pid: int, percent: int, at_us: int = 1000) -> UtilizationSample:
    return UtilizationSample(pid, at_us, percent)


def test_utilization_is_the_mean_of_each_process_and_the_sum_of_a_container() -> None:
    a = with_status(pod("a", [1, 1], cards=(FIRST,)), app_0=(1, RUNNING), app_1=(2, RUNNING))
    one, two = Owner(a.uid, box(1)), Owner(a.uid, box(2))
    found = processes((1, 1, one), (2, 1, one), (3, 1, two), (4, 1, Owner(a.uid)), (5, 1, None))
    samples = [sample(1, 20), sample(1, 40), sample(2, 5), sample(4, 7), sample(5, 99)]
    usage = measured(Reading(FIRST, **found, samples=tuple(samples)), pods=[a])
    percents = {row.container: row.sm_percent for row in usage.containers}
    assert percents == {"app-0": 35, "app-1": None, "": 7}


def test_utilization_of_several_processes_is_at_most_all() -> None:
    a = with_status(pod("a", 1, cards=(FIRST,)), app_0=(1, RUNNING))
    own = Owner(a.uid, box(1))
    samples = sample(1, 80), sample(2, 90)
    usage = measured(
        Reading(FIRST, **processes((1, 1, own), (2, 1, own)), samples=samples), pods=[a]
    )
    assert usage.containers[0].sm_percent == 100


def test_a_sample_of_an_earlier_process_with_the_same_id_does_not_count() -> None:
    a = with_status(pod("a", 1, cards=(FIRST,)), app_0=(1, RUNNING))
    started = {1: VisibleProcess(Owner(a.uid, box(1)), 300)}
    reading = Reading(FIRST, (ProcessMemory(1, MIB),), started, booted_us=1000)

    def percent(*samples: UtilizationSample) -> int | None:
        found = measured(replace(reading, samples=samples), pods=[a])
        return found.containers[0].sm_percent

    assert percent(sample(1, 99, at_us=1299)) is None
    assert percent(sample(1, 99, at_us=1299), sample(1, 10, at_us=1300)) == 10
    assert percent(sample(2, 99, at_us=1300)) is None, "the driver does not list it any longer"


def kept(mib: int, used_mib: int) -> MemoryLimit:
    return MemoryLimit(mib * MIB, used_mib * MIB)


def limited(*limits: tuple[int, MemoryLimit], **more) -> Reading:
    return Reading(FIRST, limits={box(number): limit for number, limit in limits}, **more)


def test_memory_is_that_of_the_cgroup_where_the_driver_limits_it() -> None:
    a = with_status(pod("a", [2, 3], cards=(FIRST,)), app_0=(1, RUNNING), app_1=(2, RUNNING))
    found = processes((1, 7, Owner(a.uid, box(1))), (2, 9, Owner(a.uid, box(2))))
    reading = limited((1, kept(2048, 100)), (2, MemoryLimit(None, 200 * MIB)), **found)
    usage = measured(reading, pods=[a], limiting={FIRST})
    assert shown(usage) == {("a", "app-0", FIRST): (100, 2048), ("a", "app-1", FIRST): (9, 3072)}
    assert [row.limit.hard_bytes for row in usage.containers] == [2048 * MIB, None]


def test_without_processes_only_what_the_driver_limits_is_known() -> None:
    a = with_status(pod("a", [2, 3], cards=(FIRST,)), app_0=(1, RUNNING), app_1=(2, RUNNING))
    reading = limited((1, kept(2048, 100)), (2, MemoryLimit(None, 200 * MIB)))
    usage = measured(reading, pods=[a], limiting={FIRST}, has_processes=False)
    assert shown(usage) == {("a", "app-0", FIRST): (100, 2048), ("a", "app-1", FIRST): (None, 3072)}
    assert usage.others == {}


def test_containers_that_have_ended_use_nothing_and_those_to_come_are_not_known() -> None:
    a = pod("a", [2, 3], cards=(FIRST,), init=[8])
    reading = limited((2, kept(2048, 100)))
    means = {"limiting": {FIRST}, "has_processes": False}
    started = with_status(a, init_0=(1, ENDED), app_0=(2, RUNNING), app_1=(3, ENDED))
    usage = measured(reading, pods=[started], **means)
    assert by_pod(usage) == {("a", FIRST): (100, 8192)}
    waiting = with_status(a, init_0=(1, ENDED), app_0=(2, RUNNING))
    assert by_pod(measured(reading, pods=[waiting], **means)) == {("a", FIRST): (None, 8192)}


def test_what_a_static_pod_uses_is_not_known() -> None:
    """The cgroup has the uid that the kubelet gave the pod, and its mirror another."""
    mirror = pod("a", 2, cards=(FIRST,), annotations={ANNOTATION_MIRROR: "x"})
    found = processes((1, 500, Owner("3fd1e1bd5b4d7d9a5b6a6f0c2e8f9a01", box(1))))
    usage = measured(Reading(FIRST, **found), pods=[with_status(mirror, app_0=(1, RUNNING))])
    assert by_pod(usage) == {("a", FIRST): (None, 2048)}


def test_a_limit_that_is_not_read_says_why() -> None:
    a = with_status(pod("a", 2, cards=(FIRST,)), app_0=(1, RUNNING))
    refused = MemoryLimit(why_unknown="Insufficient Permissions")
    cases = [
        ({}, [], CANNOT_LIMIT),
        ({"limiting": {FIRST}, "missing": {box(1)}}, [], NO_CGROUP),
        ({"limiting": {FIRST}}, [], NOT_READ),
        ({"limiting": {FIRST}}, [limited((1, refused))], refused.why_unknown),
    ]
    for means, readings, why in cases:
        (row,) = measured(*readings, pods=[a], **means, has_processes=False).containers
        assert (row.limit, row.used_mib) == (MemoryLimit(why_unknown=why), None)
    idle = pod("a", 2, cards=(FIRST,))
    (row,) = measured(pods=[idle], limiting={FIRST}).containers
    assert row.limit.why_unknown == NO_CONTAINER


def test_a_gpu_is_measured_by_its_processes_or_where_its_driver_can_limit() -> None:
    pods = [pod("a", 1, cards=(FIRST,)), pod("b", 1, cards=(SECOND,))]
    usage = measured(pods=pods, limiting={FIRST}, has_processes=False)
    assert [row.is_measured for row in usage.containers] == [True, False]
    assert all(row.is_measured for row in measured(pods=pods).containers)


A = pod("a", 1)


def use(used_mib: int | None, uuid: str = FIRST, *limits: MemoryLimit) -> PodUse:
    none = MemoryLimit(why_unknown=CANNOT_LIMIT)
    rows = [
        ContainerUse(A, f"app-{n}", box(n), uuid, 1024 if n == 0 else 1, used_mib, limit=limit)
        for n, limit in enumerate(limits or [none])
    ]
    return PodUse(A, uuid, rows)


def test_only_lasting_overuse_is_reported_and_once_an_hour() -> None:
    over = Overuse()
    for now in (0.0, 1.0, 2.0, LASTING_SECONDS - 1):
        assert over.check([use(1025)], now) == []
    assert over.check([use(1025)], LASTING_SECONDS) == [use(1025)]
    assert over.check([use(1025)], LASTING_SECONDS + REPEAT_SECONDS - 1) == []
    assert over.check([use(1025)], LASTING_SECONDS + REPEAT_SECONDS) == [use(1025)]


def test_a_peak_or_the_full_request_is_not_reported() -> None:
    over = Overuse()
    for round_ in range(5):
        for part, used_mib in enumerate([9999, 1024, 9999, None]):
            assert over.check([use(used_mib)], round_ * LASTING_SECONDS + part) == []


def test_a_pod_with_overuse_on_two_gpus_is_reported_once() -> None:
    over = Overuse()
    both = [use(2000), use(3000, SECOND)]
    told = [each for n in range(5) for each in over.check(both, n * LASTING_SECONDS)]
    assert told == [use(2000)]


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ([kept(1024, 9)], "The driver limits it to 1024 MiB."),
        ([kept(1024, 9), kept(512, 9)], "The driver limits it to 1536 MiB."),
        ([kept(1024, 9), MemoryLimit()], "The driver keeps no limit."),
        ([kept(1024, 9), MemoryLimit(why_unknown="x")], "No limit is known: x."),
        ([], f"No limit is known: {CANNOT_LIMIT}."),
    ],
)
def test_it_is_said_whether_the_driver_keeps_a_limit(limits, text: str) -> None:
    assert use(1, FIRST, *limits).limit_text == text
