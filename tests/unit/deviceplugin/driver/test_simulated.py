"""Simulated GPUs look like healthy ones, and stay the same."""

from pathlib import Path

from deviceplugin.cards.survey import Terms
from deviceplugin.driver.simulated import SimulatedGpus


def uuids(node: str, *sizes: int) -> list[str]:
    gpus = SimulatedGpus(node, sizes)
    return [gpus.card(position).uuid for position in range(gpus.count())]


def test_their_uuids_stay_and_differ_between_gpus_and_nodes():
    assert uuids("n1", 16384, 24576) == uuids("n1", 16384, 24576)
    assert len({*uuids("n1", 8192, 8192), *uuids("n2", 8192, 8192)}) == 4


def test_each_has_its_size_all_of_which_is_shared():
    gpus = SimulatedGpus("n1", (16384, 24576))
    assert [gpus.card(position).memory_mib for position in range(gpus.count())] == [16384, 24576]
    assert Terms(1024).usable_mib(gpus.card(1)) == 24576


def test_nothing_runs_on_them_and_nothing_happens_to_them():
    gpus = SimulatedGpus("n1", (16384,))
    assert gpus.uuid(0) == gpus.card(0).uuid
    assert gpus.processes(0) == gpus.samples(0) == ()
    assert gpus.limit(0, Path("/")).why_unknown
    assert gpus.heard == {gpus.card(0).uuid}
    assert gpus.next_event(0.001) is None
