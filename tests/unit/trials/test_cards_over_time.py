"""The fault trials call a moment wrong when a card held more than it has, and only then."""

from tests.cluster.history import RESOURCE, Change
from tests.trials.cards_over_time import held_now, wrong_moments

SIZES = {"GPU-0": 10, "GPU-1": 10}


def change(name, units, cards="", node="n", *, kind="MODIFIED", phase="Pending"):
    pod = {
        "metadata": {
            "name": name,
            "uid": name,
            "annotations": {"gpushare.aliyun.com/cards": cards},
        },
        "spec": {
            "nodeName": node,
            "containers": [{"resources": {"limits": {RESOURCE: str(units)}}}],
        },
        "status": {"phase": phase},
    }
    return Change(kind, pod)


def test_a_card_may_be_filled_and_filled_again_when_its_pod_is_gone():
    changes = [
        change("a", 10, node=""),
        change("a", 10, "GPU-0"),
        change("a", 10, "GPU-0", phase="Running"),
        change("b", 10, "GPU-1"),
        change("a", 10, "GPU-0", kind="DELETED"),
        change("b", 10, "GPU-1", phase="Succeeded"),
        change("c", 20, "GPU-0,GPU-1"),
    ]
    assert wrong_moments(changes, SIZES) == []
    assert held_now(each.pod for each in changes[-2:]) == {"GPU-0": 10, "GPU-1": 10}


def test_a_moment_at_which_a_card_held_too_much_is_found_though_it_passed():
    changes = [
        change("a", 6, "GPU-0"),
        change("b", 6, "GPU-0"),
        change("b", 6, "GPU-0", kind="DELETED"),
    ]
    assert wrong_moments(changes, SIZES) == ["b: GPU-0 holds 12 of 10"]


def test_a_pod_bound_without_cards_is_found():
    assert wrong_moments([change("a", 6)], SIZES) == ["a is bound to n without cards"]


def test_a_card_that_no_node_has_is_found():
    assert wrong_moments([change("a", 6, "GPU-9")], SIZES) == ["a: GPU-9 holds 6 of 0"]
