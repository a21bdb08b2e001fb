"""Which card: the tables of the ecosystem's own design documents and of its users' complaints."""

import pytest

from gpushare.cards import ContainerRequest, Request, Share
from gpushare.ledger import Ledger
from gpushare.placement import cards as placement
from gpushare.placement import reasons
from tests.builders import stock


def account(sizes, used=(), unhealthy=()):
    ledger = Ledger()
    ledger.set_inventory("n", stock(*sizes, unhealthy=unhealthy))
    for index, units in enumerate(used):
        if units:
            uid = f"u{index}"
            ledger.put_share(Share(uid, "default", uid, "n", units, (f"GPU-{index}",)))
    return ledger.account("n")


def request(units, cards=1):
    return Request((ContainerRequest("main", units * cards),), cards)


def test_the_tightest_card_that_fits_is_chosen():
    found = account([16276] * 4, used=[4069, 8138, 12207, 0])
    assert [card.index for card in placement.choose(found, request(8138))] == [1]


def test_the_lowest_index_wins_among_equal_cards():
    assert [card.index for card in placement.choose(account([16] * 3), request(4))] == [0]


def test_several_cards_are_the_tightest_ones_in_index_order():
    found = account([16] * 4, used=[0, 4, 8, 4])
    assert [card.index for card in placement.choose(found, request(8, cards=2))] == [1, 2]
    assert placement.choose(found, request(12, cards=4)) is None


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
    ],
)
def test_a_node_is_refused_for_the_reason_that_is_true(sizes, used, unhealthy, wanted, reason):
    assert placement.why_not(account(sizes, used, unhealthy), wanted, 1) is reason


def test_a_node_that_counts_in_another_unit_is_refused():
    assert placement.why_not(account([16]), request(1), 1024) is reasons.WRONG_UNIT


def test_reasons_are_fixed_texts():
    """A number in a text changes the pod's condition, and kube-scheduler then retries for ever."""
    texts = [r.text for r in vars(reasons).values() if isinstance(r, reasons.Reason)]
    assert len(texts) == len(set(texts)) == 14
    assert not any(character.isdigit() for text in texts for character in text)
