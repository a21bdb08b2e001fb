"""How much pods without GPU memory are going to take is foretold from how many came and stayed."""

from hypothesis import given
from hypothesis import strategies as st

from gpushare.demand.other_pods import NodeUse, OtherPods

CPU = 100_000
EMPTY = NodeUse(80, 0, CPU, 1.0, 0)


def look(pods, *nodes):
    """Return the level after a look at these nodes."""
    pods.begin()
    for number, node in enumerate(nodes):
        pods.add(f"n{number}", node)
    return pods.level()


def watching(*nodes):
    """Return what has seen these nodes as often as it takes to compare."""
    pods = OtherPods()
    assert [look(pods, *nodes), look(pods, *nodes)] == [1.0, 1.0]
    return pods


def used(units, others, free=None):
    """Return the use of a node on which the pods with GPU memory request no CPU."""
    return NodeUse(80, units, CPU, 1 - others / CPU if free is None else free, others)


def test_nothing_is_expected_where_no_pods_without_gpu_memory_come():
    pods = OtherPods()
    assert [look(pods, used(units, 0), EMPTY) for units in (0, 8, 40, 80)] == [1.0] * 4


def test_pods_that_were_there_at_the_first_look_have_not_come():
    pods = OtherPods()
    assert look(pods, used(0, 50_000), EMPTY) == 1.0
    assert look(pods, used(8, 50_000), EMPTY) == 1.0


def test_as_many_more_are_expected_with_the_free_gpu_memory_as_came_with_the_used():
    pods = watching(EMPTY, EMPTY)
    # A quarter of the GPU memory came with 20 cores, so 60 more come to 200 that are free.
    assert look(pods, used(40, 0), used(0, 20_000, free=1.0)) == 0.7


def test_a_level_falls_while_more_pods_without_gpu_memory_come():
    pods = watching(EMPTY, EMPTY)
    levels = [look(pods, used(20, much), EMPTY) for much in (5_000, 10_000, 20_000)]
    assert levels == sorted(levels, reverse=True)
    assert levels[0] < 1.0


def grown(*last):
    """Return the level after pods of both kinds came to the first node, and then these."""
    pods = OtherPods()
    for units in (0, 10, 20, 40):
        look(pods, used(units, 250 * units), EMPTY, EMPTY)
    return look(pods, *last)


def test_nothing_is_expected_where_others_go_while_more_come():
    assert grown(used(60, 10_000), used(0, 10_000), EMPTY) < 0.9
    assert grown(used(60, 0), used(0, 20_000), EMPTY) == 1.0


def test_a_small_pod_that_always_starts_again_changes_next_to_nothing():
    levels = []
    for small in (0, 250):
        pods = OtherPods()
        for step in range(41):
            level = look(pods, used(2 * step, 500 * step), used(0, small * (step % 2)), EMPTY)
        levels.append(level)
    assert max(levels) - min(levels) < 0.06  # a step
    assert max(levels) < 0.9


def test_a_few_pods_that_come_at_a_quiet_time_do_not_count_for_many():
    half = used(40, 0, free=0.5)
    pods = watching(half, half)
    assert 0.35 < look(pods, used(40, 2_000, free=0.48), half) < 0.5


def test_pods_of_a_node_that_is_no_longer_seen_come_to_no_other():
    pods = watching(EMPTY, EMPTY, used(40, 20_000))
    assert look(pods, used(40, 20_000), EMPTY) == 1.0
    assert look(pods, used(40, 20_000), EMPTY, used(40, 20_000)) < 0.9  # now these have come


def test_nothing_is_expected_any_more_once_pods_with_gpu_memory_come_alone():
    pods = watching(EMPTY, EMPTY)
    assert look(pods, used(20, 10_000), EMPTY) < 0.9
    for _ in range(30):
        look(pods, used(0, 10_000), EMPTY)
        level = look(pods, used(20, 10_000), EMPTY)
    assert level == 1.0


def test_pods_of_next_to_no_cpu_are_nothing():
    pods = watching(used(20, 50_000), used(20, 50_000))
    assert look(pods, used(40, 50_001), used(20, 50_000)) == 1.0


def test_a_level_stays_while_it_is_nearly_right():
    pods = watching(EMPTY, EMPTY)
    assert look(pods, used(40, 0), used(0, 20_000, free=1.0)) == 0.7
    assert look(pods, used(40, 0), used(0, 19_500, free=1.0)) == 0.7  # not 0.71, rounded up
    assert look(pods, used(40, 0), used(0, 19_000, free=1.0)) == 0.75
    assert look(pods, used(40, 0), used(0, 24_000, free=1.0)) == 0.65


def test_a_node_that_goes_or_comes_says_nothing_about_pods():
    pods = OtherPods()
    assert look(pods, EMPTY) == 1.0
    assert look(pods, EMPTY, used(40, 50_000)) == 1.0
    assert look(pods, EMPTY) == 1.0
    assert look(pods, EMPTY, used(40, 50_000)) == 1.0


def test_a_node_whose_use_is_unknown_is_as_before():
    pods = watching(EMPTY, used(0, 20_000))
    assert look(pods, used(20, 10_000), None) == look(pods, used(20, 10_000), used(0, 20_000)) < 1.0


@given(
    st.lists(
        st.lists(
            st.builds(
                NodeUse,
                st.integers(1, 100),
                st.integers(0, 100),
                st.integers(0, CPU),
                st.none() | st.floats(-1, 1),
                st.floats(0, CPU),
            ),
            max_size=5,
        ),
        max_size=8,
    )
)
def test_a_level_is_a_part_of_a_node(looks):
    pods = OtherPods()
    for nodes in looks:
        assert 0.0 <= look(pods, *nodes) <= 1.0
