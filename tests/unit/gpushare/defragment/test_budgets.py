"""Which budgets select which pods."""

import pytest
from msgspec import convert
from msgspec.structs import replace

from gpushare.defragment.budgets import budgets_of
from gpushare.objects.disruption_budget import DisruptionBudget
from gpushare.objects.model import Pod, PodCondition, PodStatus
from tests.builders import pod


def budget(selector: object, namespace: str = "default", **more: object) -> DisruptionBudget:
    return convert(
        {
            "metadata": {"name": "b", "namespace": namespace},
            "spec": {"selector": selector, "unhealthyPodEvictionPolicy": more.pop("policy", None)},
            "status": {"disruptionsAllowed": 1, **more},
        },
        DisruptionBudget,
    )


def running(*, ready: bool = True, phase: str = "Running") -> Pod:
    made = pod("p", labels={"app": "a"})
    conditions = (PodCondition("Ready", str(ready)),)
    return replace(made, status=PodStatus(phase, conditions=conditions))


def expression(operator: str, *values: str) -> dict[str, object]:
    one = {"key": "app", "operator": operator, "values": list(values)}
    return {"matchExpressions": [one]}


@pytest.mark.parametrize(
    ("selector", "selects"),
    [
        ({"matchLabels": {"app": "a"}}, True),
        ({"matchLabels": {"app": "a", "tier": "b"}}, False),
        ({}, True),
        (None, False),
        (expression("In", "a", "b"), True),
        (expression("NotIn", "a"), False),
        (expression("Exists"), True),
        (expression("NewOperator"), True),
    ],
)
def test_a_budget_selects_pods_as_the_api_server_does(selector: object, *, selects: bool):
    found = budgets_of([running()], [budget(selector)])
    assert found.of == ({"uid-p": ("default/b",)} if selects else {})
    assert found.allowed == {"default/b": 1}


def test_a_budget_selects_no_pod_of_another_namespace():
    other = running()
    other = replace(other, metadata=replace(other.metadata, namespace="other"))
    assert not budgets_of([other], [budget({})]).of


HEALTHY = {"currentHealthy": 2, "desiredHealthy": 2}
BROKEN = {"currentHealthy": 1, "desiredHealthy": 2}


@pytest.mark.parametrize(
    ("found", "state", "is_guarded"),
    [
        (running(), HEALTHY, True),
        (running(), BROKEN | {"policy": "AlwaysAllow"}, True),
        (running(ready=False), BROKEN, True),
        (running(ready=False), BROKEN | {"policy": "IfHealthyBudget"}, True),
        (running(ready=False), {"currentHealthy": 0, "desiredHealthy": 0}, True),
        (running(ready=False), HEALTHY, False),
        (running(ready=False), BROKEN | {"policy": "AlwaysAllow"}, False),
        (running(ready=False, phase="Pending"), BROKEN, False),
    ],
)
def test_a_budget_does_not_guard_pods_that_the_api_server_evicts_all_the_same(
    found: Pod, state: dict[str, object], *, is_guarded: bool
):
    assert bool(budgets_of([found], [budget({}, **state)]).of) is is_guarded


def test_two_budgets_guard_a_pod_that_is_not_ready():
    two = [budget({}, policy="AlwaysAllow"), budget({}, policy="AlwaysAllow")]
    assert budgets_of([running(ready=False)], two).of
    assert not budgets_of([running(phase="Pending")], two).of
