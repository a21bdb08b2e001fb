"""What people read about a gang."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.answers.gang_text import MOST_BYTES, sentence, shapes_text, view
from gpushare.answers.gangs import GangFacts, Phase, Shape
from gpushare.groups import reasons as problems
from gpushare.groups.model import GroupKey, Source
from gpushare.placement.reasons import Reason
from gpushare.planning import reasons
from gpushare.planning.ask import NoPlan, ZoneRoom

GIB = 1024
EQUAL = (Shape(8, 1, 20 * GIB),)
MIXED = (Shape(4, 1, 10 * GIB), Shape(4, 1, 20 * GIB))
ZONE = "topology.kubernetes.io/zone"


def facts(phase: Phase, *, source: Source = Source.LABELS, **more: Any) -> GangFacts:
    """A gang of eight members that are all needed."""
    wanted = {"minimum": 8, "members": 8, "shapes": EQUAL, **more}
    return GangFacts(key=GroupKey("ml", source, "train"), phase=phase, **wanted)


def no_room(*rooms: tuple[str, int], gave_up: bool = False) -> NoPlan:
    return NoPlan(reasons.NO_ROOM_FOR_GANG, tuple(ZoneRoom(*each) for each in rooms), gave_up)


@dataclass(frozen=True)
class Case:
    promise: str
    says: str
    phase: Phase
    more: dict[str, Any] = field(default_factory=dict)


CASES = [
    Case(
        "missing members are counted, and it says where the minimum is written",
        "Waiting for 3 of 8 members; 5 exist. If no more pods are to come, lower the label "
        "pod-group.scheduling.sigs.k8s.io/min-available of all its pods.",
        Phase.WAITING_FOR_MEMBERS,
        {"members": 5},
    ),
    Case(
        "the minimum of a PodGroup is written in the PodGroup",
        "Waiting for 1 of 2 members; 1 exists. If no more pods are to come, lower minMember of "
        "its PodGroup.",
        Phase.WAITING_FOR_MEMBERS,
        {"members": 1, "minimum": 2, "source": Source.POD_GROUP},
    ),
    Case(
        "a controller that may wait for Ready pods is named, with what to write",
        "Waiting for 7 of 8 members; 1 exists. Likely cause: its StatefulSet creates its next pod "
        "only when the last one is Ready. Create it again with podManagementPolicy: Parallel. If "
        "no more pods are to come, lower the label pod-group.scheduling.sigs.k8s.io/min-available "
        "of all its pods.",
        Phase.WAITING_FOR_MEMBERS,
        {"members": 1, "waits_for_ready": "StatefulSet"},
    ),
    Case(
        "members that another program holds back are named by its gate",
        "Waiting for 3 of 8 members. 3 pods count once the scheduling gates of others are removed: "
        "kueue.x-k8s.io/admission.",
        Phase.WAITING_FOR_MEMBERS,
        {"members": 5, "foreign_gates": {"kueue.x-k8s.io/admission": 3}},
    ),
    Case(
        "a group with a problem says what to do",
        "It cannot start: pod names a PodGroup that does not exist in its namespace: create the "
        "PodGroup.",
        Phase.INVALID,
        {"problem": problems.NO_POD_GROUP},
    ),
    Case(
        "a wrong minimum says what may be written",
        "It cannot start: a member of the pod's gang has a label "
        "pod-group.scheduling.sigs.k8s.io/min-available that is not a positive integer or too "
        "large for a gang. Write a number from 1 to 1024.",
        Phase.INVALID,
        {"problem": problems.WRONG_MINIMUM},
    ),
    Case(
        "too many members say how many are possible",
        "It cannot start: the pod's gang has more members than gpushare plans together. Use at "
        "most 1024, or several gangs.",
        Phase.INVALID,
        {"problem": problems.TOO_MANY},
    ),
    Case(
        "room for a part is what a smaller minimum could start with",
        "No room for 8 x 20 GiB together: 6 fit now. It starts when 2 more fit, or with a minimum "
        "of 6.",
        Phase.WAITING_FOR_ROOM,
        {"no_plan": no_room(("", 6))},
    ),
    Case(
        "with one zone for all, the zone with most room is named",
        "No zone has room for 8 x 20 GiB: zone a has room for 6. It starts when 2 more fit in zone "
        "a, or with a minimum of 6.",
        Phase.WAITING_FOR_ROOM,
        {"zone_key": ZONE, "no_plan": no_room(("a", 6), ("b", 1))},
    ),
    Case(
        "if not one member fits, that is said",
        "No room for 8 x 20 GiB together: none fits now; `gpushare explain pod` shows why.",
        Phase.WAITING_FOR_ROOM,
        {"no_plan": no_room(("", 0))},
    ),
    Case(
        "several shapes are all named, the largest first",
        "No room for 4 x 20 GiB and 4 x 10 GiB together: 7 fit now. It starts when 1 more fits.",
        Phase.WAITING_FOR_ROOM,
        {"shapes": MIXED, "no_plan": no_room(("", 7))},
    ),
    Case(
        "several GPUs for each member, and a member without GPU memory",
        "No room for 8 x 2 GPUs with 20 GiB on each and 1 pod without GPU memory together: none "
        "fits now; `gpushare explain pod` shows why.",
        Phase.WAITING_FOR_ROOM,
        {
            "minimum": 9,
            "members": 9,
            "shapes": (Shape(1, 0, 0), Shape(8, 2, 20 * GIB)),
            "no_plan": no_room(("", 0)),
        },
    ),
    Case(
        "an elastic gang needs its minimum only",
        "No room for 4 of 8 x 20 GiB together: 3 fit now. It starts when 1 more fits, or with a "
        "minimum of 3.",
        Phase.WAITING_FOR_ROOM,
        {"minimum": 4, "no_plan": no_room(("", 3))},
    ),
    Case(
        "a search that was given up does not claim that there is no room",
        "No way was found to place 4 x 20 GiB and 4 x 10 GiB together. The search was given up, "
        "and is repeated at the next change.",
        Phase.WAITING_FOR_ROOM,
        {"shapes": MIXED, "no_plan": no_room(gave_up=True)},
    ),
    Case(
        "members that lost their places are planned beside the bound ones, in their zone",
        "Zone a has no room for 2 x 20 GiB in addition to its 6 bound members: 1 fits now. It "
        "starts when 1 more fits in zone a, or with a minimum of 7.",
        Phase.WAITING_FOR_ROOM,
        {
            "bound": 6,
            "zone_key": ZONE,
            "zone": "a",
            "shapes": (Shape(2, 1, 20 * GIB),),
            "no_plan": no_room(("a", 1)),
        },
    ),
    Case(
        "a gang that was not tried yet says so",
        "Waiting for a plan for 8 x 20 GiB.",
        Phase.WAITING_FOR_ROOM,
    ),
    Case(
        "a gang that failed to start says when it is tried again",
        "No room for 8 x 20 GiB together: none fits now; `gpushare explain pod` shows why. It is "
        "tried again in 40s.",
        Phase.WAITING_FOR_ROOM,
        {"no_plan": no_room(("", 0)), "retry_seconds": 40.5},
    ),
    Case(
        "a label that no node has is named",
        f"No node that its members may use has the label {ZONE}, whose value they have to share: "
        "label the nodes, or name another label in gpushare.aliyun.com/gang-zone.",
        Phase.WAITING_FOR_ROOM,
        {"zone_key": ZONE, "no_plan": NoPlan(reasons.NO_ZONES)},
    ),
    Case(
        "zones that are for other sizes are not called full",
        "No zone is for gangs that use this number of GPUs: change the gang, or the zones' roles "
        "in the extender's configuration.",
        Phase.WAITING_FOR_ROOM,
        {"zone_key": ZONE, "no_plan": NoPlan(reasons.NO_ROLE)},
    ),
    Case(
        "a member that can never fit is looked for with explain",
        "A member requests what no node can satisfy: `gpushare explain pod` shows for each what to "
        "change.",
        Phase.WAITING_FOR_ROOM,
        {"no_plan": NoPlan(reasons.UNREADABLE_MEMBER)},
    ),
    Case(
        "members that differ too much to be planned are told the limit and the remedy",
        "Its members differ too much to be planned together: the number of their kinds (requests, "
        "node selectors, affinity, tolerations) times that of nodes may be 320,000 at most; if "
        "they have to share a zone, zones count as nodes too. Give the members equal requests and "
        "node selectors, or split the gang.",
        Phase.WAITING_FOR_ROOM,
        {"shapes": MIXED, "no_plan": NoPlan(reasons.TOO_MANY_KINDS, gave_up=True)},
    ),
    Case("a started gang counts", "Starting: 5 of 8 bound.", Phase.STARTING, {"bound": 5}),
    Case(
        "a gang that starts for long says what will happen",
        "Starting: 7 of 8 bound. 1 member finds no node: `gpushare explain pod` shows why. If not "
        "all are bound in 3m, the bound ones are evicted and it starts over.",
        Phase.STARTING,
        {"bound": 7, "stranded": 1, "starting_seconds": 100.0, "complete_seconds": 300.0},
    ),
    Case(
        "a started gang without room for the others says so",
        "Starting: 5 of 8 bound. No room for 3 x 20 GiB together in addition to its 5 bound "
        "members: 1 fits now.",
        Phase.STARTING,
        {"bound": 5, "shapes": (Shape(3, 1, 20 * GIB),), "no_plan": no_room(("", 1))},
    ),
    Case("a gang that is complete", "Placed: 8 of 8.", Phase.PLACED, {"bound": 8}),
    Case(
        "an elastic gang with room for a part",
        "Placed: 4 of 6, at least 2. The other 2 start when there is room.",
        Phase.PLACED,
        {"minimum": 2, "members": 6, "bound": 4},
    ),
    Case(
        "a gang that is being deleted waits for nothing",
        "Placed: its 8 pods are being deleted.",
        Phase.PLACED,
        {"members": 0, "ending": 8},
    ),
    Case(
        "a gang that finishes does not wait for members",
        "Placed: 3 of 8 are left, 5 ended or were deleted.",
        Phase.PLACED,
        {"members": 3, "bound": 3},
    ),
    Case(
        "a broken gang starts over",
        "Broken: it did not have 8 bound members within 5m. The bound members are evicted, and it "
        "starts over with their successors.",
        Phase.BROKEN,
        {"bound": 5, "complete_seconds": 300.0},
    ),
    Case(
        "what is not evicted has to be deleted by its owner",
        "Broken: it did not have 8 bound members within 5m. 2 bound members have no controller and "
        "are not evicted: delete them, and create the gang again.",
        Phase.BROKEN,
        {"bound": 2, "bare": 2, "complete_seconds": 300.0},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.promise)
def test_the_sentence_says_what_a_gang_waits_for_and_what_would_help(case: Case) -> None:
    assert sentence(facts(case.phase, **case.more)) == case.says


def test_many_shapes_are_summed_up() -> None:
    shapes = [Shape(2, 1, size * GIB) for size in range(1, 7)]
    assert shapes_text(shapes) == "2 x 6 GiB, 2 x 5 GiB, 2 x 4 GiB and 6 pods of 3 other sizes"


def test_an_unknown_unit_hides_amounts_and_not_members() -> None:
    assert "8 members" in sentence(facts(Phase.WAITING_FOR_ROOM, shapes=()))


def test_the_age_counts_from_the_oldest_member() -> None:
    made = facts(Phase.STARTING, created="1970-01-01T00:01:00Z")
    assert view(made, 150.0).age_seconds == 90.0
    assert view(facts(Phase.STARTING), 150.0).age_seconds == 0.0


names = st.text(min_size=1, max_size=400)
numbers = st.integers(0, 2000)


@given(
    st.builds(
        GangFacts,
        key=st.builds(GroupKey, names, st.sampled_from(list(Source)), names),
        phase=st.sampled_from(list(Phase)),
        minimum=numbers,
        members=numbers,
        bound=numbers,
        zone_key=names,
        zone=names,
        shapes=st.lists(st.builds(Shape, numbers, st.integers(0, 8), numbers), max_size=9).map(
            tuple
        ),
        foreign_gates=st.dictionaries(names, numbers, max_size=9),
        problem=st.none() | st.builds(Reason, names),
        no_plan=st.none()
        | st.builds(
            NoPlan,
            st.sampled_from([reasons.NO_ROOM_FOR_GANG, reasons.NO_ZONES, reasons.NO_ROLE]),
            st.lists(st.builds(ZoneRoom, names, numbers), max_size=5).map(tuple),
            st.booleans(),
        ),
        retry_seconds=st.floats(0, 1e6),
        starting_seconds=st.floats(0, 1e6),
        complete_seconds=st.floats(0, 1e6),
        stranded=numbers,
        bare=numbers,
        gates_stay=st.booleans(),
    )
)
def test_every_gang_has_a_sentence_that_fits_an_event(gang: GangFacts) -> None:
    said = sentence(gang)
    assert said
    assert len(said.encode()) <= MOST_BYTES
