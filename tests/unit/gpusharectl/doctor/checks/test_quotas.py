"""What is said about quotas that cannot be read, are not enforced, or fit no cluster."""

from dataclasses import replace

import pytest

from gpushare.annotations import inventory
from gpushare.contract import ANNOTATION_INVENTORY
from gpushare.quota.namespaces import Namespace
from gpusharectl.doctor.checks.findings import NOT_CHECKED
from gpusharectl.doctor.facts.cluster import LISTS_NAMESPACES, Unknown
from tests.builders import annotated, stock
from tests.unit.gpusharectl.doctor.checks.test_findings import limited, look
from tests.unit.gpusharectl.doctor.clusters import node, well, with_node


def test_a_resource_quota_beside_a_quota_rejects_what_should_wait():
    (found,) = look(limited("16", "team"))
    assert (found.kind.name, found.about) == ("QuotaInQueue", "team/gpus")
    assert "in a namespace with the annotation gpushare.aliyun.com/quota" in found.found
    assert "namespace team gpushare.aliyun.com/quota=16 &&" in found.fix


def test_a_quota_of_a_model_is_compared_with_its_gpus():
    cards = stock(16, 16).cards
    found = replace(stock(16, 16), cards=(replace(cards[0], model="T4"), cards[1]))
    made = annotated(node("n1"), {ANNOTATION_INVENTORY: inventory.encode(found)})
    facts = replace(with_node(made), limits=limited("T4=17,A100=1").limits)
    assert {each.kind.name: each.found for each in look(facts)} == {
        "QuotaTooLarge": "a quota of 17 units of T4, and the cluster has 16 of T4",
        "QuotaOfNoModel": "a quota for model 'A100', which no node has; the models here are T4",
    }


@pytest.mark.parametrize("verb", [each.verb for each in LISTS_NAMESPACES])
def test_a_queue_too_needs_the_right_to_read_namespaces(verb):
    right = next(each for each in LISTS_NAMESPACES if each.verb == verb)
    queued = {"queues": frozenset({"team-b"}), "gating": frozenset({"a"})}
    facts = well(permissions={**well().permissions, right: False}, **queued)
    said = {each.kind.name: each.found for each in look(facts)}
    expected = f"it may not {verb} namespaces; with a quota or a queue: team-b"
    assert said["QuotaNotEnforced"] == expected


def test_what_cannot_be_read_is_not_checked():
    unknown = Unknown("you lack the right to list namespaces", lacks_right=True)
    found = look(well(limits=unknown))
    assert {each.kind for each in found} == {NOT_CHECKED}
    right = dict.fromkeys(LISTS_NAMESPACES, Unknown("no answer"))
    found = look(limited("16", permissions={**well().permissions, **right}))
    assert NOT_CHECKED in {each.kind for each in found}


def test_an_unreadable_quota_says_what_is_wrong_and_what_to_write():
    (found,) = look(well(limits=(Namespace("mine", problem="'x' is not a whole number"),)))
    assert found.found == "'x' is not a whole number"
    assert "kubectl annotate --overwrite namespace mine gpushare.aliyun.com/quota=" in found.fix
