"""What the doctor asks for is what daemonset/ gives: rights and policies."""

import yaml

from gpusharectl.doctor.checks.access import POLICIES, needed
from tests.unit.gpusharectl.doctor.clusters import ROOT, SYSTEM

ACCESS = ROOT / "daemonset" / "base" / "access"


def objects(*kinds: str) -> list[dict]:
    documents = [
        each for path in ACCESS.glob("*.yaml") for each in yaml.safe_load_all(path.read_text())
    ]
    return [each for each in documents if each["kind"] in kinds]


def test_the_rights_that_are_looked_at_are_those_of_the_roles():
    given = {
        (role["metadata"]["name"], verb, resource, group, name)
        for role in objects("ClusterRole", "Role")
        for rule in role["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
        for group in rule["apiGroups"]
        for name in rule.get("resourceNames", [""])
    }
    looked_at = {(p.account, p.verb, p.resource, p.group, p.name) for p in needed(SYSTEM)}
    assert looked_at == given


def test_the_policies_that_are_looked_for_are_those_of_the_base():
    for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
        assert {each["metadata"]["name"] for each in objects(kind)} == set(POLICIES)
