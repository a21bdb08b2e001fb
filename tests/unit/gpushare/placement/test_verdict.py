"""Many nodes are judged for a pod as one by one, though nodes in the same state only once."""

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.cards.model import Card, ContainerRequest, Health, Inventory, Request, Share
from gpushare.cards.placement_policy import CardPolicy, NodePolicy, PlacementPolicy
from gpushare.contract import BY_CDI, BY_DRIVER, BY_FRAMEWORK, EARLY_BINDING
from gpushare.demand.scarcity import NOT_KNOWN, Capacity, Left, Scarcity
from gpushare.ledger.ledger import Ledger
from gpushare.placement import verdict
from gpushare.placement.rank import Policies
from gpushare.placement.reasons import LEAVING, UNREADABLE, Reason

SIZES = (4, 8)
MODELS = ("A", "B")
SCARCITY = Scarcity(
    cpu=100,
    memory=200,
    capacity=Capacity(most_units=16, most_cpu=4000, most_memory=4000),
    hosts=(((), ()), ((), ()), ((500, 2000), (0.25, 0.5)), ((500,), (1.0,))),
    models={"A": 0.5},
)


@dataclass(frozen=True)
class Gpu:
    units: int = 8
    model: str = "A"
    used: int = 0
    expected: int = 0
    health: Health = Health.HEALTHY
    is_cordoned: bool = False
    enforces: str = ""


LEFT = Left(2000, 2000, 4000, 4000)


@dataclass(frozen=True)
class State:
    gpus: tuple[Gpu, ...] = (Gpu(), Gpu())
    left: Left | None = LEFT
    closed: Reason | None = None
    setup: dict[str, object] = field(default_factory=dict)

    def look(self, name):
        made = [
            Card(
                i,
                f"{name}-{i}",
                gpu.units,
                gpu.health,
                model=gpu.model,
                is_cordoned=gpu.is_cordoned,
                enforces=gpu.enforces,
            )
            for i, gpu in enumerate(self.gpus)
        ]
        ledger = Ledger()
        ledger.set_inventory(name, Inventory(**{"unit_mib": 1, "cards": tuple(made), **self.setup}))
        for card, gpu in zip(made, self.gpus, strict=True):
            share = Share(f"u{card.index}", "", "", name, gpu.used, (card.uuid,))
            ledger.put_share(share)
        expected = {card.uuid: gpu.expected for card, gpu in zip(made, self.gpus, strict=True)}
        expected = {uuid: units for uuid, units in expected.items() if units}
        return verdict.look(ledger.account(name), self.closed, 1, expected, self.left)


GPU_CHANGES = (
    *[("units", size) for size in SIZES],
    *[("model", model) for model in MODELS],
    *[(what, units) for what in ("used", "expected") for units in (0, 2, 4)],
    ("health", Health.UNHEALTHY),
    ("is_cordoned", True),
    *[("enforces", each) for each in (BY_DRIVER, BY_FRAMEWORK)],
)
CHANGES = (
    ("left", None),
    *[("left", Left(*left, 4000, 4000)) for left in ((1000, 2000), (2000, 1000), (-5, 0))],
    *[("left", Left(2000, 2000, *every)) for every in ((2000, 4000), (4000, 2000))],
    *[("closed", reason) for reason in (LEAVING, UNREADABLE)],
)
SETUPS = (
    {"unit_mib": 2},
    {"binding": EARLY_BINDING},
    {"runtime_classes": frozenset({"nvidia"})},
    *[
        {"injection": injection, "runtime_classes": frozenset(classes)}
        for injection in (BY_CDI, "runtime")
        for classes in ((), ("nvidia",), ("nvidia", ""))
    ],
)


@st.composite
def nodes(draw):
    """Nodes that are the same or differ in one or two things: they are changed one by one."""
    found = [State()]
    for _ in range(draw(st.integers(1, 12))):
        now = draw(st.sampled_from(found))
        where = draw(st.integers(-2, len(now.gpus)))
        if where == -2:
            found.append(replace(now, setup=draw(st.sampled_from(SETUPS))))
            continue
        if where == -1:
            found.append(replace(now, **dict([draw(st.sampled_from(CHANGES))])))
            continue
        gpus = list(now.gpus)
        if where == len(gpus):
            gpus = gpus[1:] if len(gpus) > draw(st.integers(1, 3)) else [*gpus, Gpu()]
        else:
            gpus[where] = replace(gpus[where], **dict([draw(st.sampled_from(GPU_CHANGES))]))
        found.append(replace(now, gpus=tuple(gpus)))
    return found


SOME = frozenset(f"n{number}-0" for number in range(1, 13, 2))
POLICIES = st.builds(
    PlacementPolicy,
    st.sampled_from([None, *NodePolicy]),
    st.sampled_from([None, *CardPolicy]),
    models=st.sampled_from([frozenset(), frozenset("A"), frozenset("B"), frozenset("AB")]),
    only=st.sampled_from([frozenset(), SOME]),
    never=st.sampled_from([frozenset(), SOME]),
    needs_limit=st.booleans(),
)
REQUESTS = st.builds(
    lambda units, count, **more: Request(
        (
            ContainerRequest("main", units * count, sets_cards=more.pop("sets")),
            *[ContainerRequest("other", 0)] * more.pop("others"),
        ),
        count,
        **more,
    ),
    st.sampled_from([2, 4, 6, 8]),
    st.integers(1, 2),
    sets=st.booleans(),
    others=st.integers(0, 1),
    policy=POLICIES | st.just(PlacementPolicy()),
    runtime_class=st.sampled_from(["", "nvidia"]),
    cpu=st.sampled_from([0, 700]),
)
CONFIGURED = st.builds(
    Policies,
    st.sampled_from(list(NodePolicy)),
    st.sampled_from(list(CardPolicy)),
    st.just(((0, 0), (50, 10), (100, 3))),
)


@settings(max_examples=1000)
@given(nodes(), REQUESTS, CONFIGURED, st.sampled_from([NOT_KNOWN, SCARCITY]))
def test_every_node_gets_the_verdict_that_it_gets_alone(states, asked, policies, scarcity):
    judge = verdict.judging(asked, policies, 1, scarcity)
    for number, state in enumerate(states):
        name = f"n{number}"
        look = state.look(name)
        alone = verdict.decide(look, asked, policies, 1, name, scarcity=scarcity)
        assert judge(look, name) == alone


def test_nodes_that_differ_only_in_names_are_in_the_same_state():
    looks = [State().look(name) for name in ("a", "b")]
    assert looks[0].state is looks[1].state
    assert State(left=None).look("c").state is not looks[0].state
