"""What kube-scheduler's configuration says about all pods, compared with the extender's."""

from typing import Any

import pytest

from gpusharectl.doctor.checks.findings import NOT_CHECKED
from gpusharectl.doctor.checks.profile_rules import RULE_UNKNOWN
from gpusharectl.doctor.checks.scheduler import plain
from gpusharectl.doctor.facts.cluster import Scheduler, Unknown
from tests.unit.gpusharectl.doctor.checks.test_findings import look
from tests.unit.gpusharectl.doctor.clusters import scheduler, well, with_status

NAME = "kube-system/kube-scheduler-cp1"
LICENSE = "example.com/license"


def required(*terms: Any) -> dict[str, Any]:
    part = {"nodeSelectorTerms": list(terms)}
    return {"addedAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": part}}


GPU = required({"matchExpressions": [{"key": "pool", "operator": "In", "values": ["gpu"]}]})


def profile(plugin: str, args: Any) -> dict[str, Any]:
    return {"pluginConfig": [{"name": plugin, "args": args}]}


def found(settings: Any, *profiles: Any, extenders: Any = ()) -> list[str]:
    """Return the settings that are named."""
    before = scheduler().configuration
    changes = plain({"profiles": list(profiles), "extenders": list(extenders)})
    changes["extenders"] = [*before["extenders"], *changes["extenders"]]
    offers = {LICENSE: "4", "example.com/idle": "0"}
    control, _, other = well().nodes
    facts = well(
        nodes=(control, with_status("n1", offers, offers), other),
        schedulers={NAME: Scheduler("cp1", {**before, **changes})},
        profile_rules=settings,
    )
    said = [each for each in look(facts) if each.kind is RULE_UNKNOWN]
    assert all(each.about == NAME for each in said)
    return sorted({name for name in NAMES for each in said if f"set {name} " in each.fix})


NAMES = ("ignoredResources", "ignoredResourceGroups", "addedAffinity")
FIT = "NodeResourcesFit"
GROUPS = {"ignoredResourceGroups": ["example.com"]}


@pytest.mark.parametrize(
    ("args", "settings", "named"),
    [
        ({"ignoredResources": [LICENSE]}, {}, ["ignoredResources"]),
        ({"IgnoredResources": [LICENSE]}, {}, ["ignoredResources"]),  # as /configz shows it
        ({"ignoredResources": [LICENSE]}, {"ignoredResources": [LICENSE]}, []),
        ({"ignoredResources": ["example.com/idle", "example.org/unknown"]}, {}, []),
        ({"ignoredResourceGroups": ["example.com"]}, {}, ["ignoredResourceGroups"]),
        (
            {"ignoredResourceGroups": ["example.com"]},
            {"ignoredResourceGroups": ["example.com"]},
            [],
        ),
        ({"ignoredResources": None}, {}, []),
    ],
)
def test_a_resource_that_nodes_offer_and_kube_scheduler_ignores_is_a_setting(args, settings, named):
    assert found(settings, profile(FIT, args)) == named


def test_what_another_extender_keeps_from_kube_scheduler_is_a_setting():
    other = {
        "urlPrefix": "http://other:1/x",
        "managedResources": [{"name": LICENSE, "ignoredByScheduler": True}],
    }
    assert found({}, extenders=[other]) == ["ignoredResources"]
    assert found({"ignoredResources": [LICENSE]}, extenders=[other]) == []


@pytest.mark.parametrize(
    ("profiles", "settings", "named"),
    [
        ([profile("NodeAffinity", GPU)], {}, ["addedAffinity"]),
        ([profile("NodeAffinity", GPU)], GPU, []),
        ([profile("NodeAffinity", required({"matchFields": []}))], GPU, ["addedAffinity"]),
        ([], GPU, ["addedAffinity"]),
        ([profile("NodeAffinity", GPU), {}], GPU, []),
        ([profile("NodeAffinity", GPU), {}], {}, []),
        ([profile("NodeAffinity", {"addedAffinity": None})], {}, []),
    ],
)
def test_added_affinity_is_the_one_of_a_profile(profiles, settings, named):
    assert found(settings, *profiles) == named


def test_settings_that_cannot_be_read_are_not_compared():
    (only,) = look(well(profile_rules=Unknown("you lack the right to get configmaps")))
    assert only.kind == NOT_CHECKED
