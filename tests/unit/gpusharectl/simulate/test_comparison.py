"""gpushare simulate --policy: the same pods, placed once by each policy."""

import json
import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpushare.cards.placement_policy import CardPolicy, NodePolicy
from gpushare.placement.rank import Policies
from gpusharectl.manifests.yaml_lines import read
from gpusharectl.policies.option import WITHOUT_SETTINGS
from gpusharectl.simulate.comparison.runs import compare
from gpusharectl.simulate.run import Run
from gpusharectl.simulate.scenario import build
from tests.builders import node as gpu_node
from tests.unit.gpusharectl.simulate import dumps
from tests.unit.gpusharectl.simulate.test_command import SCENE, simulate
from tests.unit.gpusharectl.simulate.test_run import node_text, pod_text, scenarios, waiting

BOTH = ("--policy", "binpack", "--policy", "spread")


def built(texts):
    return build(read("f.yaml", "---\n".join(texts).encode()), places_again=True)


@given(scenarios(), st.sampled_from(list(CardPolicy)))
def test_a_column_is_what_a_simulation_with_this_policy_ends_with(texts, card):
    found = compare(built(texts), WITHOUT_SETTINGS, card).moments[-1]
    for policy, column in zip(WITHOUT_SETTINGS, found.policies, strict=True):
        last = list(Run(built(texts), Policies(policy, card)).steps())[-1]
        assert column.policy == policy.value
        assert column.pending == len(waiting(last))
        left = column.left
        assert (found.at, left.used, left.units) == (last.at, last.used, last.units)
        assert left.fragmentation == last.fragmentation
        assert left.free_cards == sum(not card.used for n in last.nodes for card in n.cards)


@given(scenarios(), st.sampled_from(WITHOUT_SETTINGS))
def test_a_policy_does_not_differ_from_itself(texts, policy):
    for moment in compare(built(texts), [policy, policy], CardPolicy.BINPACK).moments:
        one, other = moment.policies
        assert one == other


def dump(*pods):
    """Two nodes with two GPUs of 16 GiB each, as kubectl prints them, and pods."""
    nodes = []
    for name in ("n1", "n2"):
        made = gpu_node(name, 16, 16, unit_mib=1024)
        amounts = {"aliyun.com/gpu-mem": "32"}
        nodes.append(dumps.node(name, annotations=made.annotations, capacity=amounts))
    return dumps.dump(*nodes, *pods)


def running(name, units, on, card, created):
    chosen = {"gpushare.aliyun.com/cards": f"GPU-{card}", "ALIYUN_COM_GPU_MEM_IDX": str(card)}
    made = dumps.pod(name, on, chosen, **{"aliyun.com/gpu-mem": units})
    made["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:{created:02}Z"
    return made


def test_pods_of_a_cluster_are_placed_again_in_order_of_creation():
    pods = [running(f"p{n}", 8, f"n{n % 2 + 1}", n // 2, 9 - n) for n in range(2)]
    pods += [running("large", 16, "n2", 1, 30), running("middle", 12, "n1", 1, 20)]
    shown = simulate("-", *BOTH, stdin=dump(*pods).decode())
    assert "Placed again, by priority and then by age: 4 bound pods." in shown
    assert re.search(r"^pods Pending +0 +0$", shown, re.MULTILINE)
    assert re.search(r"^GPUs entirely free +1 +0$", shown, re.MULTILINE)
    scenario = build(read("stdin", dump(*pods)), places_again=True)
    assert [event.pod.metadata.name for event in scenario.pods] == ["p1", "p0", "middle", "large"]


def test_what_other_systems_hold_stays_where_it_is_and_does_not_count():
    whole = dumps.node("other", 8, labels=dumps.labels(8, 81920))
    pods = [dumps.pod("whole", "other", gpu=2), running("p", 8, "n1", 0, 1)]
    text = dump(whole, *pods).decode()
    found = json.loads(simulate("-", *BOTH, "-o", "json", stdin=text))
    assert found["placedAgain"] == 1
    assert found["moments"][0]["policies"][0]["left"]["units"] == 64


def test_what_is_not_simulated_of_pods_that_are_placed_again_is_named():
    made = running("p", 8, "n1", 0, 1)
    made["spec"]["volumes"] = [{"name": "data"}]
    shown = simulate("-", *BOTH, stdin=dump(made).decode())
    assert "volumes (1 pod)." in shown


def test_the_time_when_most_is_requested_is_compared_too(tmp_path):
    path = tmp_path / "scene.yaml"
    path.write_text(SCENE.replace("at: 20s", "at: 20s\ndelete: 1m"))
    found = json.loads(simulate(str(path), *BOTH, "-o", "json"))
    assert [moment["at"] for moment in found["moments"]] == [20, 60]
    assert [each["pending"] for each in found["moments"][0]["policies"]] == [1, 1]
    assert found == yaml.safe_load(simulate(str(path), *BOTH, "-o", "yaml"))
    shown = simulate(str(path), *BOTH)
    assert "-- when most is requested (20s)\n" in shown
    assert "-- at the end (1m)\n" in shown


def test_pods_that_request_a_policy_keep_it_and_are_counted():
    shown = simulate("--example", "spreading", *BOTH)
    assert "Placed by a node policy that the pod requests itself: 4 pods." in shown


def test_every_policy_without_settings_can_be_compared():
    assert NodePolicy.SHAPE not in WITHOUT_SETTINGS
    for policy in WITHOUT_SETTINGS:
        assert f" {policy.value}\n" in simulate("--example", "vllm", "--policy", policy.value)
    assert "'shape' is not one of" in simulate("--example", "vllm", "--policy", "shape", code=2)


@pytest.mark.parametrize("other", ["--node-policy=spread", "--last", "--all-must-run", "--serve"])
def test_what_is_for_one_policy_is_refused_for_several(other):
    told = simulate("--example", "vllm", *BOTH, other, code=2)
    assert "use only one of them" in told


def test_without_gpus_that_are_shared_by_memory_there_is_nothing_to_compare():
    whole = dumps.dump(dumps.node("n", 8, labels=dumps.labels(8, 81920)))
    told = simulate("-", *BOTH, code=2, stdin=whole.decode())
    assert "no node shares its GPUs by memory" in told


def test_whole_gpus_are_compared_as_if_their_pods_requested_what_is_assumed():
    nodes = [dumps.node(name, 2, labels=dumps.labels(2, 81920)) for name in ("a", "b")]
    pods = [dumps.pod(f"p-{number}", on, gpu=1) for number, on in enumerate("aabb")]
    content = dumps.dump(*nodes, *pods, dumps.pod("waits", gpu=1)).decode()
    told = simulate("-", *BOTH, "--assume-memory", "16", stdin=content)
    assert "Placed again, by priority and then by age: 4 bound pods." in told
    rows = {line[:34].strip(): line[34:].split() for line in told.splitlines()}
    assert rows["pods Pending"] == ["0", "0"]
    assert rows["GPU memory used"] == ["25.0%", "25.0%"]
    assert rows["GPUs entirely free"] == ["3", "2"]
    whole = simulate("-", *BOTH, code=2, stdin=content)
    assert "Add --assume-memory GIB to compare as if pods with whole GPUs requested it" in whole


def on_two_nodes(gib, *pods):
    nodes = [node_text(name, f"1 x {gib}") for name in ("a", "b")]
    return "---\n".join([*nodes, *(pod_text(name, units, at=at) for name, units, at in pods)])


def test_kinds_of_pods_that_wait_with_only_one_policy_are_named():
    pods = [("first", 10, 0), ("second", 10, 0), ("big", 20, 0)]
    told = simulate("-", *BOTH, stdin=on_two_nodes(20, *pods))
    assert "binpack leaves no pod Pending; spread leaves big (20 GiB) Pending." in told
    assert "free, but too little for any pod" in told


def test_of_many_kinds_that_wait_the_same_are_counted_for_each_policy():
    pods = [("first", 50, 0), ("second", 50, 0), ("k98", 98, 1)]
    pods += [(f"k{units}", units, 2) for units in (99, 97, 96, 95, 94)]
    told = simulate("-", *BOTH, stdin=on_two_nodes(100, *pods))
    rows = [line.rsplit(maxsplit=2) for line in told.splitlines() if line.startswith("  ")]
    assert [row[1:] for row in rows[1:6]] == [["1", "1"], ["0", "1"], *[["1", "1"]] * 2, ["2", "2"]]
    assert rows[5][0].strip() == "and 2 other kinds"
    found = json.loads(simulate("-", *BOTH, "-o", "json", stdin=on_two_nodes(100, *pods)))
    assert [len(each["waiting"]) for each in found["moments"][-1]["policies"]] == [5, 6]


def test_a_claim_that_one_of_the_policies_would_make_is_told():
    pods = [("first", 50, 0), ("second", 50, 0), ("big", 98, 1), ("small", 2, "1h")]
    for policies in (BOTH, ("--policy", "spread", "--policy", "binpack")):
        told = simulate("-", *policies, stdin=on_two_nodes(100, *pods))
        assert "GPUs would be reserved as they become free: big)" in told
