"""In a simulation, pods and gangs evict less important ones, as in a cluster."""

import json

import pytest

from gpushare.errors import SettingsError
from gpusharectl.manifests.yaml_lines import read
from gpusharectl.simulate import preempting
from gpusharectl.simulate.scenario import build
from tests.unit.gpusharectl.simulate.test_command import simulate
from tests.unit.gpusharectl.simulate.test_gangs import member
from tests.unit.gpusharectl.simulate.test_namespaces import namespace, of
from tests.unit.gpusharectl.simulate.test_run import node_text, pod_text, run, waiting, where

HIGH = "priority: 10"
WHOLE_GPU = "{name: main, resources: {limits: {nvidia.com/gpu: 1}}}"


def job(name, parallelism, units):
    return (
        f"kind: Job\nmetadata: {{name: {name}}}\nspec:\n  parallelism: {parallelism}\n  template:\n"
        "    spec:\n      containers: [{name: main, resources: {limits: {aliyun.com/gpu-mem: "
        f"{units}}}}}}}]\n"
    )


def priority_class(name, value, more=""):
    return f"kind: PriorityClass\nmetadata: {{name: {name}}}\nvalue: {value}\n{more}"


def whats(step):
    return sorted((each.what, each.name) for each in step.happened)


def test_a_pod_evicts_no_more_than_it_needs_and_those_of_a_workload_return():
    texts = [job("low", 4, 8), pod_text("high", 12, at=5, delete=9, more=HIGH)]
    _, evicted, after = run(node_text("n", "2 x 16"), *texts)
    assert whats(evicted)[:2] == [("evicted", "low-3"), ("evicted", "low-4")]
    assert waiting(evicted) == ["low-3", "low-4"]
    assert len(where(after)) == 4


def test_a_pod_without_a_controller_is_gone_and_no_green_exit():
    texts = [pod_text("low", 16, delete=20), pod_text("high", 12, at=5, more=HIGH)]
    steps = run(node_text("n", "1 x 16"), *texts)
    assert (sorted(where(steps[-1])), waiting(steps[-1])) == (["high"], [])
    stdin = "---\n".join([node_text("n", "1 x 16"), *texts])
    shown = simulate("-", "--all-must-run", stdin=stdin, code=1)
    assert "low is evicted from n, GPU 0 (16 GiB) for high; no controller" in shown
    assert "1 pod is evicted for good: low" in shown


@pytest.mark.parametrize("more", ["", "priority: 10\n  preemptionPolicy: Never"])
def test_nobody_is_evicted_for_equal_priority_or_without_the_policy(more):
    step = run(node_text("n", "1 x 16"), pod_text("a", 16), pod_text("b", 16, at=5, more=more))[-1]
    assert waiting(step) == ["b"]


def test_nobody_is_evicted_for_a_pod_over_its_quota():
    texts = [pod_text("low", 16), of("ml", pod_text("high", 8, at=5, more=HIGH))]
    step = run(node_text("n", "1 x 16"), namespace("ml", 4), *texts)[-1]
    assert (sorted(where(step)), waiting(step)) == (["low"], ["high"])


def test_a_gang_evicts_for_all_members_and_a_note_says_what_it_needs():
    gang = [member(f"a-{n}", "a", 2, 12, at=5, more=HIGH) for n in range(2)]
    texts = [node_text("n", "2 x 16"), job("low", 2, 16), *gang]
    step = run(*texts)[-1]
    assert (sorted(where(step)), waiting(step)) == (["a-0", "a-1"], ["low-1", "low-2"])
    shown = simulate("-", stdin="---\n".join(texts))
    assert "Note: gang a: gangs evict pods only with preemption.enabled" in shown
    assert " for gang a" in shown


def test_it_is_said_for_whom_of_which_namespace_a_pod_is_evicted():
    texts = [of("a", pod_text("low", 16)), of("b", pod_text("api", 12, at=5, more=HIGH))]
    shown = simulate("-", stdin="---\n".join([node_text("n", "1 x 16"), *texts]))
    assert "- a/low is evicted from n, GPU 0 (16 GiB) for b/api; no controller" in shown


def test_a_gang_for_which_nobody_is_searched_any_more_is_named(monkeypatch):
    monkeypatch.setattr(preempting, "MOST_FAILED", 0)
    gang = [of("ml", member(f"a-{n}", "a", 2, 12, at=5, more=HIGH)) for n in range(2)]
    texts = [node_text("n", "2 x 16"), job("low", 2, 16), *gang]
    assert "Note: gang ml/a: evicts nobody here: " in simulate("-", stdin="---\n".join(texts))


def test_a_gang_that_is_evicted_starts_again_only_as_a_whole():
    gang = [
        job("a", 2, 16).replace(
            "    spec:\n      containers",
            "    metadata: {labels: {pod-group.scheduling.sigs.k8s.io/name: a, "
            'pod-group.scheduling.sigs.k8s.io/min-available: "2"}}\n    spec:\n      containers',
        )
    ]
    texts = [*gang, pod_text("high", 16, at=5, delete=9, more=HIGH)]
    _, evicted, after = run(node_text("n", "2 x 16"), *texts)
    assert (sorted(where(evicted)), waiting(evicted)) == (["high"], ["a-1", "a-2"])
    assert sorted(where(after)) == ["a-1", "a-2"]


def test_a_priority_class_in_the_files_gives_its_priority():
    texts = [
        priority_class("serving", 10),
        priority_class("polite", 10, "preemptionPolicy: Never\n"),
        pod_text("low", 16),
        pod_text("polite", 16, at=3, more="priorityClassName: polite"),
        pod_text("high", 16, at=5, more="priorityClassName: serving"),
    ]
    _, second, third = run(node_text("n", "1 x 16"), *texts)
    assert (waiting(second), waiting(third)) == (["polite"], ["polite"])
    assert sorted(where(third)) == ["high"]


def test_the_default_class_is_for_pods_without_one():
    usual = priority_class("usual", 10, "globalDefault: true\n")
    texts = [usual, pod_text("low", 16, more="priority: 1"), pod_text("usual", 16, at=5)]
    assert sorted(where(run(node_text("n", "1 x 16"), *texts)[-1])) == ["usual"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (priority_class("a", "high"), "whole number of 32 bits"),
        (priority_class("a", 2**40), "whole number of 32 bits"),
        (priority_class("a", 1, "preemptionPolicy: Sometimes\n"), "write Never"),
        (priority_class("a", 1) + "---\n" + priority_class("a", 2), "a is defined twice"),
        (priority_class("a", 1, "vlaue: 1\n"), "did you mean value"),
    ],
)
def test_wrong_priority_classes_are_errors(text, said):
    with pytest.raises(SettingsError, match=said):
        build(read("f.yaml", text.encode()))


def test_a_claim_that_would_be_made_is_told_first_by_every_output():
    texts = [
        node_text("n", "1 x 16"),
        pod_text("a", 8, delete=2500),
        pod_text("b", 8),
        of("ml", pod_text("big", 16, at=1)),
        pod_text("c", 8, at=2400),
    ]
    stdin = "---\n".join(texts)
    told = "claims (after 30 min, GPUs would be reserved as they become free: ml/big)"
    assert simulate("-", stdin=stdin).startswith(f"Not simulated here: {told}.\n")
    assert json.loads(simulate("-", "-o", "json", stdin=stdin))["leftOut"] == [told]
    all_run = f"{stdin}---\n{node_text('m', '1 x 16', at=3000)}"
    assert f"--all-must-run: Not simulated here: {told}" in simulate(
        "-", "--all-must-run", stdin=all_run, code=2
    )
    whole = f"kind: Pod\nmetadata: {{name: gpu}}\nspec: {{containers: [{WHOLE_GPU}]}}\n"
    assert f"; {told}." in simulate("-", stdin=f"{stdin}---\n{whole}")
    in_time = stdin.replace("at: 2400", "at: 1700").replace("2500", "1600")
    assert json.loads(simulate("-", "-o", "json", stdin=in_time))["leftOut"] == []


def test_budgets_matter_only_if_somebody_may_be_evicted():
    budget = "kind: PodDisruptionBudget\nmetadata: {name: b}\n"
    texts = [node_text("n", "1 x 16"), budget, pod_text("a", 8)]
    assert "Not simulated here" not in simulate("-", stdin="---\n".join(texts))
    more = pod_text("b", 8, more=HIGH)
    assert simulate("-", stdin="---\n".join([*texts, more])).startswith(
        "Not simulated here: PodDisruptionBudgets, which keep pods from eviction.\n"
    )


def test_an_eviction_that_a_budget_could_forbid_is_no_green_exit():
    budget = "kind: PodDisruptionBudget\nmetadata: {name: b}\n"
    texts = [budget, node_text("n", "2 x 16"), job("a", 2, 8), pod_text("b", 16, at=1, more=HIGH)]
    simulate("-", "--all-must-run", stdin="---\n".join(texts))
    texts += [pod_text("c", 16, at=2, more=HIGH), node_text("m", "1 x 16", at=3)]
    told = simulate("-", "--all-must-run", stdin="---\n".join(texts), code=2)
    assert "--all-must-run: Not simulated here: PodDisruptionBudgets" in told
