"""What is known of PodDisruptionBudgets when victims are chosen."""

import msgspec
import pytest

from extender.preemption.budgets import MOST_LISTED, BudgetWatch
from gpushare.errors import ApiError
from gpushare.objects.disruption_budget import DisruptionBudget
from tests.fakes.clock import FakeClock


class Listed:
    """Lists pods by namespace and selector."""

    def __init__(self) -> None:
        self.pods: dict[tuple[str, str], list[str]] = {}
        self.lists: list[tuple[str, str]] = []
        self.failing = ""

    async def list_page(self, collection, **_):
        namespace = collection.path.split("/")[4]
        if namespace == self.failing:
            raise ApiError("no answer", code=500)
        key = namespace, collection.label_selector
        self.lists.append(key)
        items = [{"metadata": {"uid": uid}} for uid in self.pods.get(key, ())]
        return msgspec.json.encode({"metadata": {}, "items": items})


def budget(name, allowed, namespace="ns", selector="app"):
    found = {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"matchLabels": {selector: name}}},
        "status": {"disruptionsAllowed": allowed},
    }
    return msgspec.json.decode(msgspec.json.encode(found), type=DisruptionBudget)


@pytest.fixture
def kube():
    return Listed()


@pytest.fixture
def time():
    return FakeClock()


@pytest.fixture
def watch(kube, time):
    return BudgetWatch(kube, time)


async def test_pods_have_the_budgets_that_select_them(kube, watch):
    kube.pods = {("ns", "app=a"): ["1", "2"], ("ns", "app=b"): ["2"]}
    watch.replaced([budget("a", 1), budget("b", 0), budget("c", 3, "other")])
    found, unknown = await watch.of_pods_in({"ns"})
    assert found.of == {"1": ("ns/a",), "2": ("ns/a", "ns/b")}
    assert found.allowed == {"ns/a": 1, "ns/b": 0}
    assert unknown == frozenset()


async def test_nobody_is_chosen_in_a_namespace_of_which_the_budgets_are_unknown(kube, watch):
    assert (await watch.of_pods_in({"ns"}))[1] == {"ns"}
    watch.replaced([budget("a", 1), budget("c", 3, "other")])
    kube.failing = "ns"
    found, unknown = await watch.of_pods_in({"ns", "other"})
    assert unknown == {"ns"}
    assert found.allowed == {"other/c": 3}


async def test_what_a_budget_lets_go_is_always_that_of_now(kube, watch):
    kube.pods = {("ns", "app=a"): ["1"]}
    watch.replaced([budget("a", 1)])
    assert (await watch.of_pods_in({"ns"}))[0].allowed == {"ns/a": 1}
    watch.changed(budget("a", 0))
    assert (await watch.of_pods_in({"ns"}))[0].allowed == {"ns/a": 0}
    watch.deleted(budget("a", 0))
    assert (await watch.of_pods_in({"ns"}))[0].of == {}


async def test_the_pods_of_a_budget_are_listed_at_most_every_ten_seconds(kube, watch, time):
    watch.replaced([budget("a", 1)])
    await watch.of_pods_in({"ns"})
    await watch.of_pods_in({"ns"})
    assert len(kube.lists) == 1
    time.now += 10
    await watch.of_pods_in({"ns"})
    assert len(kube.lists) == 2


async def test_budgets_of_a_namespace_that_has_too_many_are_not_read(kube, watch):
    many = [budget(f"b{number}", 1) for number in range(MOST_LISTED + 1)]
    watch.replaced([*many, budget("c", 3, "other")])
    found, unknown = await watch.of_pods_in({"ns", "other"})
    assert (unknown, found.allowed) == ({"ns"}, {"other/c": 3})
    assert len(kube.lists) == 1


async def test_where_there_is_no_budget_nothing_is_listed(kube, watch):
    watch.replaced([budget("a", 1)])
    assert (await watch.of_pods_in({"other"}))[1] == frozenset()
    assert kube.lists == []
