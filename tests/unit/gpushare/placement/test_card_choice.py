"""The choice of cards: tables from Aliyun gpushare's design documents and its users' issues."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.cards.model import ContainerRequest, Request, Share
from gpushare.cards.placement_policy import DEFAULT_POLICY, CardPolicy, PlacementPolicy
from gpushare.ledger.ledger import Ledger
from gpushare.placement import card_choice as placement
from gpushare.placement import reasons
from tests.builders import stock


def account(sizes, used=(), unhealthy=(), cordoned=(), *, models=(), enforces=()):
    found = stock(*sizes, unhealthy=unhealthy)
    cards = tuple(
        replace(
            card,
            is_cordoned=card.index in cordoned,
            model=dict(enumerate(models)).get(i, ""),
            enforces=dict(enumerate(enforces)).get(i, ""),
        )
        for i, card in enumerate(found.cards)
    )
    ledger = Ledger()
    ledger.set_inventory("n", replace(found, cards=cards))
    for index, units in enumerate(used):
        if units:
            ledger.put_share(Share(f"u{index}", "", "", "n", units, (f"GPU-{index}",)))
    return ledger.account("n")


def request(units, cards=1, policy=DEFAULT_POLICY):
    return Request((ContainerRequest("main", units * cards),), cards, policy)


def policy_of(only=(), never=(), models=()):
    return PlacementPolicy(None, None, frozenset(models), frozenset(only), frozenset(never))


def indexes(account, request, *policy):
    chosen = placement.choose(account, request, *policy)
    return chosen and [card.index for card in chosen]


def test_several_cards_are_the_tightest_ones_in_index_order():
    found = account([16] * 4, used=[0, 4, 8, 4])
    assert indexes(found, request(8, cards=2)) == [1, 2]
    assert indexes(found, request(12, cards=4)) is None
    assert indexes(account([80] * 9), request(40, cards=4)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("sizes", "used", "unhealthy", "wanted", "reason"),
    [
        ([16276] * 2, [12207, 12207], [], request(8138), reasons.NO_ROOM),
        ([16276] * 2, [8138, 16276], [], request(8138), None),
        ([16276] * 2, [], [], request(20000), reasons.TOO_LARGE),
        ([16, 16], [], [0], request(16), None),
        ([16, 16], [], [0, 1], request(16), reasons.UNHEALTHY),
        ([16], [], [], request(8, cards=2), reasons.TOO_FEW_CARDS),
        ([16, 4], [], [], request(8, cards=2), reasons.TOO_LARGE),
        ([16, 16], [0, 12], [], request(8, cards=2), reasons.NO_ROOM_ON_ENOUGH),
        ([16, 16], [0, 8], [], request(8, cards=2), None),
        ([16, 16], [12], [], request(8, policy=policy_of(only=["GPU-0"])), reasons.NO_ROOM),
    ],
)
def test_a_node_is_rejected_for_the_right_reason(sizes, used, unhealthy, wanted, reason):
    assert placement.why_not(account(sizes, used, unhealthy), wanted, 1) is reason


def test_a_node_with_another_unit_is_rejected():
    assert placement.why_not(account([16]), request(1), 1024) is reasons.WRONG_UNIT


@pytest.mark.parametrize(
    ("sizes", "used", "wanted", "binpack", "spread"),
    [
        ([16384] * 2, [4096], 4096, [0], [1]),
        ([16] * 3, [], 4, [0], [0]),
        ([10, 10], [6], 5, [1], [1]),
        ([16, 16], [16], 8, [1], [1]),
        ([16, 80], [0, 8], 8, [0], [0]),
        ([16, 80], [4, 8], 8, [0], [1]),  # 25 percent and 10
        ([16276] * 4, [4069, 8138, 12207, 0], 4069, [2], [3]),
        ([16276] * 4, [4069, 8138, 12207, 0], 8138, [1], [3]),
    ],
)
def test_binpack_takes_the_fullest_card_that_fits_and_spread_the_least_used(
    sizes, used, wanted, binpack, spread
):
    found = account(sizes, used)
    assert indexes(found, request(wanted)) == binpack
    assert indexes(found, request(wanted), CardPolicy.SPREAD) == spread
    policy = PlacementPolicy(card_policy=CardPolicy.SPREAD)
    assert indexes(found, request(wanted, policy=policy), CardPolicy.BINPACK) == spread


def test_spread_takes_the_least_used_cards():
    found = account([16] * 4, used=[2, 1, 8, 0])
    assert indexes(found, request(4, cards=2), CardPolicy.SPREAD) == [1, 3]
    assert indexes(found, request(4, cards=2)) == [0, 2]


@pytest.mark.parametrize(
    ("policy", "found"),
    [
        (policy_of(only=["GPU-0"]), [0]),
        (policy_of(never=["GPU-0"]), [1]),
        (policy_of(only=["GPU-10"]), reasons.UNWANTED),
        (policy_of(only=["GPU"]), reasons.UNWANTED),
        (policy_of(never=["GPU-0", "GPU-1"]), reasons.UNWANTED),
        (policy_of(only=["GPU-0", "GPU-1"], never=["GPU-0"]), [1]),
        (policy_of(only=["GPU-0"], never=["GPU-0"]), reasons.UNWANTED),
        (policy_of(models=["NVIDIA A10"]), [0]),
        (policy_of(models=["NVIDIA A100", "x"]), [1]),
        (policy_of(models=["A10"]), reasons.WRONG_MODEL),
        (policy_of(models=["NVIDIA A10"], never=["GPU-0"]), reasons.UNWANTED),
    ],
)
def test_card_lists_match_exactly_and_exclusion_takes_precedence(policy, found):
    cards = account([16, 16], models=["NVIDIA A10", "NVIDIA A100"])
    wanted = request(8, policy=policy)
    reason = found if isinstance(found, reasons.Reason) else None
    assert placement.why_not(cards, wanted, 1) is reason
    assert indexes(cards, wanted) == (None if reason else found)


@pytest.mark.parametrize(
    ("enforces", "count", "found"),
    [
        (["driver", "framework"], 1, [0]),
        (["framework", "driver"], 1, [1]),
        (["driver", "driver"], 2, [0, 1]),
        (["driver", "nothing"], 2, reasons.NOT_LIMITED),
        (["framework", "nothing"], 1, reasons.NOT_LIMITED),
        (["", ""], 1, reasons.NOT_LIMITED),
    ],
)
def test_required_isolation_allows_only_cards_whose_driver_limits_memory(enforces, count, found):
    cards = account([16, 16], enforces=enforces)
    wanted = request(8, count, PlacementPolicy(needs_limit=True))
    reason = found if isinstance(found, reasons.Reason) else None
    assert placement.why_not(cards, wanted, 1) is reason
    assert indexes(cards, wanted) == (None if reason else found)


def test_required_isolation_waits_for_room_where_the_driver_limits_memory():
    cards = account([16, 16], used=[12], enforces=["driver", "nothing"])
    wanted = request(8, policy=PlacementPolicy(needs_limit=True))
    assert placement.why_not(cards, wanted, 1) is reasons.NO_ROOM


@pytest.mark.parametrize(
    ("cordoned", "unhealthy", "cards", "reason"),
    [
        ([0], [], 1, None),
        ([0, 1], [], 1, reasons.CORDONED),
        ([0], [], 2, reasons.CORDONED),
        ([0], [1], 1, reasons.CORDONED),
        ([], [0, 1], 1, reasons.UNHEALTHY),
    ],
)
def test_a_cordoned_card_takes_no_new_pods(cordoned, unhealthy, cards, reason):
    found = account([16, 16], unhealthy=unhealthy, cordoned=cordoned)
    assert placement.why_not(found, request(8, cards=cards), 1) is reason


def test_a_cordoned_card_keeps_its_pods():
    entry = account([16, 16], [8], cordoned=[0]).cards[0]
    assert (entry.used, entry.free) == (8, 8)


CARDS = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 20), st.booleans(), st.booleans()),
    min_size=1,
    max_size=4,
)
NAMES = st.sets(st.sampled_from(["GPU-0", "GPU-1", "GPU-2"]))


@given(
    CARDS,
    st.integers(1, 12),
    st.integers(1, 3),
    st.tuples(NAMES, NAMES),
    st.sampled_from(CardPolicy),
)
def test_a_pod_gets_cards_that_fit_or_a_reason(cards, units, count, names, policy):
    only, never = names
    sizes, used, ill, cordoned = (list(each) for each in zip(*cards, strict=True))
    unhealthy = [i for i, each in enumerate(ill) if each]
    closed = [i for i, each in enumerate(cordoned) if each]
    found = account(sizes, used, unhealthy, closed)
    wanted = request(units, count, policy_of(only, never))
    chosen = placement.choose(found, wanted, policy)
    assert (chosen is None) == (placement.why_not(found, wanted, 1) is not None)
    free = {entry.card.uuid: entry.free for entry in found.cards}
    for card in chosen or ():
        assert free[card.uuid] >= units
        assert card.takes_new
        assert not only or card.uuid in only
        assert card.uuid not in never
    if chosen is not None:
        assert len(set(chosen)) == count
        assert list(chosen) == sorted(chosen, key=lambda card: card.index)


def test_a_reason_that_no_eviction_resolves_is_final():
    final = {r for r in vars(reasons).values() if isinstance(r, reasons.Reason) and r.is_final}
    assert {reasons.CORDONED, reasons.UNWANTED, reasons.WRONG_MODEL} <= final
    assert {reasons.UNREADABLE_CORDON, reasons.UNHEALTHY, reasons.TOO_LARGE} <= final
    assert not {reasons.NO_ROOM, reasons.NO_ROOM_ON_ENOUGH, reasons.COOLING} & final


def test_reasons_are_fixed_texts():
    """A changing text would change the pod's condition, and kube-scheduler would retry forever."""
    texts = [r.text for r in vars(reasons).values() if isinstance(r, reasons.Reason)]
    assert len(texts) == len(set(texts)) == 20
    assert not any(character.isdigit() for text in texts for character in text)
