"""A cell of the matrix is right if the container has its card or did not run."""

from typing import Any

import pytest

from tests.trials.cells import Cell, End, Ending, Kind, ending_of, pod_of

GRANTED = {"gpushare.aliyun.com/cards": "GPU-1"}


def pod(phase: str = "Running", state: dict[str, Any] | None = None) -> dict[str, Any]:
    statuses = [{"state": state}] if state else []
    return {
        "metadata": {"annotations": GRANTED},
        "status": {"phase": phase, "containerStatuses": statuses},
    }


@pytest.mark.parametrize(
    ("cards", "end"),
    [(["GPU-1"], End.OWN), ([], End.NONE), (["GPU-2"], End.OTHER), (["GPU-1", "GPU-2"], End.OTHER)],
)
def test_a_container_that_ran_is_judged_by_the_cards_it_had(cards, end):
    assert ending_of(pod(), cards, ["an earlier try failed"]).end == end


@pytest.mark.parametrize(
    "found",
    [
        pod("Failed"),
        pod(state={"waiting": {"reason": "RunContainerError", "message": "no such device"}}),
        pod(state={"terminated": {"reason": "StartError", "message": "no such device"}}),
    ],
)
def test_a_container_that_an_error_kept_from_running_was_refused(found):
    assert ending_of(found, None, []).end == End.REFUSED


def test_a_container_waits_until_it_runs_or_something_is_said_about_it():
    waiting = pod("Pending", {"waiting": {"reason": "ContainerCreating"}})
    assert ending_of(waiting, None, []).end == End.WAITING
    assert ending_of(waiting, None, ["no runtime for nvidia"]).end == End.REFUSED


@pytest.mark.parametrize("kind", Kind)
def test_right_is_the_own_card_for_those_that_ask_and_none_for_the_others(kind):
    ends = {end for end in End if Ending(end).is_right(kind)}
    assert ends == {End.OWN if kind.asks else End.NONE, End.REFUSED}


@pytest.mark.parametrize("kind", Kind)
def test_a_cells_pod_asks_for_memory_of_one_card_and_names_its_runtime_class(kind):
    described = pod_of(Cell("n1", kind, "nvidia"), "GPU-7")
    assert described["spec"]["runtimeClassName"] == "nvidia"
    assert described["metadata"]["annotations"] == {"gpushare.aliyun.com/card-uuids-only": "GPU-7"}
    assert "aliyun.com/gpu-mem" in str(described["spec"]["containers"])
