"""Which pods a PodDisruptionBudget selects, and how many of them it lets go."""

import msgspec
import pytest

from gpushare.objects.disruption_budget import DisruptionBudget


def budget(selector=None, allowed=None):
    found = {
        "metadata": {"name": "b", "namespace": "ns"},
        "spec": {"selector": selector, "minAvailable": 1},
        "status": {} if allowed is None else {"disruptionsAllowed": allowed, "currentHealthy": 3},
    }
    return msgspec.json.decode(msgspec.json.encode(found), type=DisruptionBudget)


def expression(key, operator, *values):
    return {"key": key, "operator": operator, "values": list(values) or None}


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (None, None),
        ({}, ""),
        ({"matchLabels": {"app": "a", "tier": "b"}}, "app=a,tier=b"),
        ({"matchExpressions": [expression("app", "In", "a", "b")]}, "app in (a,b)"),
        ({"matchExpressions": [expression("app", "NotIn", "a")]}, "app notin (a)"),
        ({"matchExpressions": [expression("app", "Exists")]}, "app"),
        ({"matchExpressions": [expression("app", "DoesNotExist")]}, "!app"),
        (
            {"matchLabels": {"x": "y"}, "matchExpressions": [expression("app", "Exists")]},
            "x=y,app",
        ),
    ],
)
def test_the_selector_is_the_one_that_the_api_server_understands(selector, expected):
    assert budget(selector).selector == expected


def test_an_unknown_operator_protects_all_pods_of_the_namespace():
    assert budget({"matchExpressions": [expression("app", "Gt", "5")]}).selector == ""


@pytest.mark.parametrize(("allowed", "expected"), [(None, 0), (0, 0), (2, 2), (-1, 0)])
def test_a_budget_lets_nobody_go_before_its_controller_says_so(allowed, expected):
    assert budget({}, allowed).allowed == expected
