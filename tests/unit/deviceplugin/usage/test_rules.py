"""The measured memory of each pod on each GPU is exact, or has no value."""

from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.cards.survey import Terms, survey
from deviceplugin.driver.interface import ProcessMemory
from deviceplugin.usage.rules import (
    ENDED_POD,
    HOST,
    OVERUSE_READINGS,
    REPEAT_SECONDS,
    UNKNOWN,
    Overuse,
    PodMemory,
    tally,
)
from tests.fakes.driver import card
from tests.fakes.pods import pod

FIRST, SECOND = card(0).uuid, card(1).uuid
INVENTORY = survey(None, [card(0), card(1)], Terms(1024)).inventory
MIB = 1 << 20


def uses(processes, owners, *pods) -> dict[tuple[str, str], tuple[int | None, int]]:
    """Pod name and card to MiB used and asked for."""
    found = tally(processes, owners, pods, INVENTORY).pods
    return {(use.pod.metadata.name, use.uuid): (use.used_mib, use.asked_mib) for use in found}


def mib(pid: int, amount: int) -> ProcessMemory:
    return ProcessMemory(pid, amount * MIB)


def test_the_processes_of_a_pod_are_added_up_on_each_gpu() -> None:
    a = pod("a", 8, cards=(FIRST, SECOND), labels={"aliyun.com/gpu-count": "2"})
    b = pod("b", 2, cards=(SECOND,))
    processes = {FIRST: (mib(1, 300), mib(2, 200)), SECOND: (mib(1, 7), mib(3, 1000))}
    assert uses(processes, {1: a.uid, 2: a.uid, 3: b.uid}, a, b) == {
        ("a", FIRST): (500, 4096),
        ("a", SECOND): (7, 4096),
        ("b", SECOND): (1000, 2048),
    }


def test_a_share_that_uses_nothing_uses_0() -> None:
    assert uses({FIRST: (), SECOND: ()}, {}, pod("a", 1, cards=(FIRST,))) == {
        ("a", FIRST): (0, 1024)
    }


def test_a_pod_on_a_gpu_that_it_has_not_asked_for_asked_for_0_of_it() -> None:
    a, stranger = pod("a", 1, cards=(FIRST,)), pod("stranger", 0)
    found = uses({SECOND: (mib(1, 5), mib(2, 6))}, {1: a.uid, 2: stranger.uid}, a, stranger)
    assert found[("a", SECOND)] == (5, 0)
    assert found[("stranger", SECOND)] == (6, 0)


def test_memory_that_the_driver_does_not_report_is_not_0() -> None:
    a = pod("a", 1, cards=(FIRST,))
    owners = {1: a.uid, 2: a.uid}
    assert uses({FIRST: None}, owners, a) == {("a", FIRST): (None, 1024)}
    assert uses({}, owners, a) == {("a", FIRST): (None, 1024)}
    untold = (ProcessMemory(1, None), mib(2, 5))
    assert uses({FIRST: untold}, owners, a) == {("a", FIRST): (None, 1024)}


def test_memory_of_the_host_and_of_ended_pods_is_separate() -> None:
    ended = pod("ended", 1, cards=(FIRST,), uid="ended")
    found = tally({FIRST: (mib(1, 5), mib(2, 6))}, {1: None, 2: ended.uid}, (), INVENTORY)
    assert found.others == {(FIRST, HOST): 5, (FIRST, ENDED_POD): 6, (FIRST, UNKNOWN): 0}


def test_pods_next_to_an_invisible_process_have_no_value() -> None:
    a, b = pod("a", 1, cards=(FIRST,)), pod("b", 1, cards=(SECOND,))
    processes = {FIRST: (mib(1, 5), mib(9, 6)), SECOND: (mib(2, 7),)}
    assert uses(processes, {1: a.uid, 2: b.uid}, a, b) == {
        ("a", FIRST): (None, 1024),
        ("b", SECOND): (7, 1024),
    }
    others = tally(processes, {1: a.uid, 2: b.uid}, (a, b), INVENTORY).others
    assert others[FIRST, UNKNOWN] == 6


@given(
    st.dictionaries(
        st.sampled_from([FIRST, SECOND]), st.lists(st.tuples(st.integers(1, 6), st.integers(0, 99)))
    )
)
def test_every_reported_mib_is_counted_once(shown) -> None:
    a, b = pod("a", 1, cards=(FIRST,)), pod("b", 1, cards=(SECOND,))
    owners = {1: a.uid, 2: b.uid, 3: None, 4: "gone", 5: a.uid, 6: b.uid}
    processes = {
        uuid: tuple(mib(pid, amount) for pid, amount in found) for uuid, found in shown.items()
    }
    usage = tally(processes, owners, (a, b), INVENTORY)
    for uuid, found in shown.items():
        counted = sum(use.used_mib or 0 for use in usage.pods if use.uuid == uuid)
        counted += sum(amount or 0 for (on, _), amount in usage.others.items() if on == uuid)
        assert counted == sum(amount for _, amount in found)


A = pod("a", 1)


def use(used_mib: int | None, uuid: str = FIRST) -> PodMemory:
    return PodMemory(A, uuid, used_mib, 1024)


def test_only_lasting_overuse_is_reported_and_once_an_hour() -> None:
    over, now = Overuse(), 0.0
    for _ in range(OVERUSE_READINGS - 1):
        assert over.check([use(1025)], now) == []
    assert over.check([use(1025)], now) == [use(1025)]
    assert over.check([use(1025)], REPEAT_SECONDS - 1) == []
    assert over.check([use(1025)], REPEAT_SECONDS) == [use(1025)]


def test_a_peak_or_the_full_request_is_not_reported() -> None:
    over = Overuse()
    for _ in range(OVERUSE_READINGS):
        assert over.check([use(9999)], 0) == []
        assert over.check([use(1024)], 0) == []
        assert over.check([use(9999)], 0) == []
        assert over.check([use(None)], 0) == []


def test_a_pod_with_overuse_on_two_gpus_is_reported_once() -> None:
    over = Overuse()
    both = [use(2000), use(3000, SECOND)]
    told = [each for _ in range(5) for each in over.check(both, 0)]
    assert told == [use(2000)]
