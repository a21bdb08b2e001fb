"""What is left of GPUs, counted again from the shares in the ledger."""

from hypothesis import given
from hypothesis import strategies as st

from gpushare.cards.model import Share
from gpushare.ledger.ledger import Ledger
from gpusharectl.policies.kinds import Kind
from gpusharectl.policies.left import TooLittle, left_on
from tests.builders import stock


def kind(units, cards=1):
    return Kind("default", "k", 0, units, cards, 1)


def ledger(**nodes):
    """Each node with its GPUs as (units, used)."""
    made = Ledger()
    for name, cards in nodes.items():
        made.set_inventory(name, stock(*(units for units, _ in cards)))
        for index, (_, used) in enumerate(cards):
            if used:
                uid = f"{name}-{index}"
                made.put_share(Share(uid, "default", uid, name, used, (f"GPU-{index}",)))
    return made


CARD = st.integers(1, 8).flatmap(lambda units: st.tuples(st.just(units), st.integers(0, units)))
NODES = st.dictionaries(st.sampled_from("abc"), st.lists(CARD, min_size=1, max_size=4), min_size=1)
KINDS = st.lists(st.builds(kind, st.integers(1, 8), st.integers(1, 3)), max_size=3)


@given(NODES, KINDS)
def test_counts_are_those_of_the_shares(nodes, kinds):
    found = left_on(ledger(**nodes), nodes, kinds)
    cards = [card for each in nodes.values() for card in each]
    assert (found.units, found.used) == tuple(map(sum, zip(*cards, strict=True)))
    assert found.free_cards == sum(not used for _, used in cards)
    for each, counted in zip(kinds, found.too_little, strict=True):
        left = [units for here in nodes.values() for units in useless(each, here)]
        assert counted == TooLittle(len(left), sum(left))


def useless(each, cards):
    """What is free on the GPUs of a node that the kind could use only if GPUs were empty."""

    def usable(free):
        able = [index for index, units in enumerate(free) if units >= each.units_per_card]
        return set(able) if len(able) >= each.cards else set()

    free = [units - used for units, used in cards]
    empty = usable([units for units, _ in cards])
    return [free[index] for index in empty - usable(free) if free[index]]


def test_free_memory_that_is_less_than_any_pod_requests_is_counted():
    found = left_on(ledger(a=[(16, 9), (16, 14), (16, 16)], b=[(16, 13)]), "ab", [kind(8), kind(3)])
    assert found.unusable == 2


def test_a_gpu_that_is_too_small_when_empty_is_not_left_too_small():
    found = left_on(ledger(a=[(4, 1)], b=[(16, 9)], c=[(16, 0)]), "abc", [kind(8)])
    assert found.too_little == (TooLittle(1, 7),)


def test_free_gpus_of_a_node_with_too_few_of_them_are_of_no_use_to_a_pod_with_several():
    kinds = [kind(8), kind(8, cards=2)]
    found = left_on(ledger(a=[(8, 0), (8, 1)], b=[(8, 0), (8, 0)], c=[(8, 0)]), "abc", kinds)
    assert found.too_little == (TooLittle(1, 7), TooLittle(2, 15))


def test_only_the_given_nodes_count():
    found = left_on(ledger(a=[(8, 2)], b=[(8, 0)]), ["a"], [])
    assert (found.units, found.used, found.free_cards) == (8, 2, 0)
