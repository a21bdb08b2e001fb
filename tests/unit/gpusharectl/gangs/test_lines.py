"""What people read of gangs."""

from gpushare.answers.gangs import GangView
from gpusharectl.gangs.lines import Gangs, draw


def gang(name: str = "train", phase: str = "Placed", **more) -> GangView:
    fields = {
        "namespace": "ml",
        "source": "labels",
        "minimum": 8,
        "members": 8,
        "bound": 8,
        "slots": 0,
        "gated": 0,
        "zone_key": "",
        "zone": "",
        "created": "2026-01-01T00:00:00Z",
        "age_seconds": 7200.0,
        "priority": 0,
        "text": "Placed: 8 of 8.",
        **more,
    }
    return GangView(name=name, phase=phase, **fields)


WAITING = gang("big", "WaitingForMembers", bound=0, members=5, text="Waiting for 3 of 8 members.")


def shown(*gangs: GangView, namespace="ml", is_wide=False, **more) -> list[str]:
    found = Gangs(list(gangs), namespace, **more)
    return [line.plain for line in draw(found, is_wide=is_wide)]


def test_each_gang_is_a_row_with_its_sentence() -> None:
    assert shown(gang(zone="a"), WAITING) == [
        "NAME   BOUND  MEMBERS  MINIMUM  PHASE              ZONE  AGE  STATUS",
        "train      8        8        8  Placed             a     2h   Placed: 8 of 8.",
        "big        0        5        8  WaitingForMembers  -     2h   Waiting for 3 of 8 members.",
    ]


def test_all_namespaces_and_wide_add_columns() -> None:
    heads, row = shown(gang(gated=2, slots=3, priority=50), namespace="", is_wide=True)
    assert heads.split() == [
        *("NAMESPACE", "NAME", "BOUND", "MEMBERS", "MINIMUM", "PHASE", "ZONE", "AGE"),
        *("SLOTS", "GATED", "PRIORITY", "SOURCE", "STATUS"),
    ]
    assert row.split()[:12] == [
        "ml",
        "train",
        "8",
        "8",
        "8",
        "Placed",
        "-",
        "2h",
        "3",
        "2",
        "50",
        "labels",
    ]


def test_no_gangs_are_said_to_be_none_only_if_all_are_known() -> None:
    assert shown() == ["no gangs in namespace ml"]
    assert shown(namespace="") == ["no gangs in any namespace"]
    assert shown(complete=False, not_shown=["1 gang left out"]) == ["1 gang left out"]


def test_what_is_left_out_is_counted() -> None:
    assert shown(gang(), left_out=3)[-1] == "and 3 more gangs (-n shows one namespace)"


def test_a_phase_of_a_newer_extender_is_shown_as_it_is() -> None:
    assert "Dreaming" in shown(gang(phase="Dreaming"))[1]
