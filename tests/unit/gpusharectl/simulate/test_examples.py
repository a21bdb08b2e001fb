"""Each example shows what its comment claims."""

import pytest

from gpushare.placement.rank import Policies
from gpushare.placement.reasons import NO_ROOM, NO_ROOM_ON_ENOUGH, WRONG_MODEL
from gpusharectl.manifests.yaml_lines import read
from gpusharectl.simulate import examples
from gpusharectl.simulate.run import Run
from gpusharectl.simulate.scenario import build
from tests.unit.gpusharectl.simulate.test_command import simulate
from tests.unit.gpusharectl.simulate.test_run import waiting, where

KUBERNETES = {"v1", "apps/v1", "batch/v1", "scheduling.k8s.io/v1"}


def steps(name):
    """The steps of an example by their time."""
    scenario = build(read(name, examples.content(name)))
    return {step.at: step for step in Run(scenario, Policies()).steps()}


def free(step):
    return {node.name: [card.free for card in node.cards] for node in step.nodes}


def why(step, pod):
    [group] = [g for g in step.waiting if pod in [each.name for each in g.pods]]
    return {node.name: node.why for node in group.nodes}


def test_filter_a_nodes_sum_is_not_a_card():
    at = steps("filter")
    assert free(at[0]) == {"n1": [0, 4], "n2": [4, 4], "n3": [8, 0]}
    assert where(at[10])["notebook-1"] == ("n3", [0])
    assert waiting(at[20]) == ["notebook-2"]
    assert sum(free(at[20])["n2"]) == 8
    assert why(at[20], "notebook-2")["n2"] == NO_ROOM.text
    assert where(at[30])["notebook-2"] == ("n3", [0])


def test_bind_the_card_with_the_least_room_that_is_enough():
    at = steps("bind")
    assert free(at[0]) == {"n4": [12, 8, 4, 16]}
    assert where(at[10])["notebook"] == ("n4", [1])
    assert where(at[20])["train"] == ("n4", [3])


def test_fragmentation_half_a_node_is_free_and_a_whole_card_is_not():
    at = steps("fragmentation")
    assert free(at[0]) == {"gpu-node": [0, 0, 0, 0]}
    assert free(at[60]) == {"gpu-node": [8, 8, 8, 8]}
    assert why(at[120], "vllm") == {"gpu-node": NO_ROOM.text}
    assert where(at[180])["vllm"] == ("gpu-node", [1])


def test_spreading_leaves_no_whole_card():
    at = steps("spreading")
    placed = where(at[0])
    assert {placed[f"packed-{number}"][0] for number in range(1, 5)} == {"packed-1"}
    packed = {"packed-1": [0, 16], "packed-2": [16, 16]}
    assert free(at[0]) == {**packed, "spread-1": [12, 12], "spread-2": [12, 12]}
    assert where(at[10])["train-packed"] == ("packed-1", [1])
    assert waiting(at[10]) == ["train-spread"]


def test_several_cards_are_of_one_node():
    at = steps("several-cards")
    assert free(at[0]) == {"n1": [16, 10], "n2": [16, 16, 16]}
    assert where(at[10])["vllm-1"] == ("n2", [0, 1])
    assert sum(free(at[20])["n2"]) == 24
    assert set(why(at[20], "vllm-2").values()) == {NO_ROOM_ON_ENOUGH.text}


def test_models_and_what_else_keeps_a_pod_off():
    at = steps("models")
    assert why(at[10], "finetune")["t4"] == WRONG_MODEL.text
    assert free(at[20])["a100"] == [8]
    assert where(at[20])["vllm"][0] == where(at[20])["notebook"][0] == "t4"
    assert where(at[60])["finetune"] == ("a100", [0])


def test_cordon_keeps_what_runs_and_takes_nothing_new():
    at = steps("cordon")
    assert where(at[10]) == {"notebook-1": ("n1", [0]), "notebook-2": ("n1", [1])}
    assert waiting(at[20]) == ["notebook-3"]
    assert where(at[60])["notebook-3"] == ("n1", [0])


def test_notebooks_share_gpus_and_one_waits_for_another_to_end():
    at = steps("notebooks")
    assert free(at[0]) == {"gpu-node": [0, 0]}
    assert waiting(at[600]) == ["notebook-9"]
    assert where(at[1800])["notebook-9"] == ("gpu-node", [1])


def test_a_rollout_of_vllm_needs_room_for_one_more_replica():
    at = steps("vllm")
    assert free(at[60]) == {"gpu-node": [6, 22]}
    assert why(at[60], "llama-new") == {"gpu-node": NO_ROOM.text}
    assert where(at[300])["llama-new"] == ("gpu-node", [1])


def test_training_goes_before_a_notebook_that_waits_for_longer():
    at = steps("training")
    assert waiting(at[10]) == ["train-1", "notebook"]
    assert waiting(at[300]) == ["notebook"]
    assert where(at[7200])["notebook"] == ("gpu-node", [1])


def test_a_gang_starts_as_a_whole_or_not_at_all():
    at = steps("gang")
    assert sorted(where(at[10])) == [f"job-a-{number}" for number in range(1, 5)]
    workers = [f"job-b-{number}" for number in range(1, 5)]
    assert waiting(at[20]) == [*workers, "job-b-coordinator"]
    assert where(at[30])["notebook"] == ("n2", [1])
    assert waiting(at[30]) == waiting(at[20])
    assert sorted(where(at[120])) == [*workers, "notebook"]
    assert waiting(at[120]) == []


def test_an_example_ends_on_what_it_shows():
    for name, _ in examples.titles():
        shown = simulate("--example", name).splitlines()
        assert shown[-1] == examples.point(name)
        assert shown[-1].endswith(".")


@pytest.mark.parametrize(("name", "title"), list(examples.titles()))
def test_every_example_has_a_title_and_is_what_kubernetes_takes(name, title):
    assert title
    assert not title.startswith("#")
    for document in read(name, examples.content(name)):
        assert document.value["apiVersion"] in KUBERNETES


def test_quota_a_gang_waits_with_free_gpus_and_the_smaller_share_comes_first():
    at = steps("quota")
    assert (where(at[0]), len(waiting(at[0]))) == ({}, 4)
    assert sorted(where(at[10])) == ["notebook-1"]
    assert {"ddp-1", "ddp-4"} <= where(at[60]).keys()
    assert waiting(at[180]) == ["notebook-2", "llama-2"]
    assert waiting(at[240]) == ["notebook-2"]


def test_preemption_ends_no_more_than_is_needed_and_no_equals():
    at = steps("preemption")
    assert [each.name for each in at[10].happened] == ["train-3", "train-4", "llama"]
    assert waiting(at[20]) == ["train-3", "train-4", "evaluate"]
    assert waiting(at[3600]) == ["evaluate"]
