"""Which budgets select which pods."""

import pytest
from msgspec import convert
from msgspec.structs import replace

from gpushare.defragment.budgets import budgets_of
from gpushare.objects.disruption_budget import DisruptionBudget
from tests.builders import pod


def budget(selector: object, namespace: str = "default", allowed: int = 1) -> DisruptionBudget:
    return convert(
        {
            "metadata": {"name": "b", "namespace": namespace},
            "spec": {"selector": selector},
            "status": {"disruptions_allowed": allowed, "disruptionsAllowed": allowed},
        },
        DisruptionBudget,
    )


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
    found = budgets_of([pod("p", labels={"app": "a"})], [budget(selector)])
    assert found.of == ({"uid-p": ("default/b",)} if selects else {})
    assert found.allowed == {"default/b": 1}


def test_a_budget_selects_no_pod_of_another_namespace():
    other = pod("p", labels={"app": "a"})
    other = replace(other, metadata=replace(other.metadata, namespace="other"))
    assert not budgets_of([other], [budget({})]).of
