"""What a person and a program are shown: a word beside each sign, all of it as JSON."""

import pytest
from rich.console import Console

from gpushare.text.manual import manual
from gpusharectl.doctor import show
from gpusharectl.doctor.checks.findings import CheckResult, Outcome, examine
from gpusharectl.doctor.command import CHECKS
from gpusharectl.doctor.facts.cluster import Facts, Quota, Unknown
from tests.unit.gpusharectl.doctor.clusters import node, well, with_node

BROKEN = with_node(node("n1", 16, 16, unit_mib=1024))
UNKNOWN = well(quotas=Unknown("you lack the right to list resourcequotas", lacks_right=True))
MANY = well(quotas=tuple(Quota("team", f"quota-{number}", "1", "1") for number in range(8)))


def results(facts: Facts) -> list[CheckResult]:
    return examine(facts, CHECKS)


@pytest.fixture
def said(capsys):
    def render(facts: Facts) -> str:
        show.show(results(facts), Console(width=60, no_color=True))
        return capsys.readouterr().out

    return render


def test_each_finding_has_a_word_its_cause_its_cure_and_where_to_read_on(said):
    text = said(BROKEN)
    for line in ("✗ problem  n1: counts in units of 1024 MiB", "why: ", "fix: set the same"):
        assert line in text
    assert f"see: UnitsMixed, {manual('reference/settings.md#the-configuration-file')}" in text
    idle = [each for each in results(BROKEN) if each.outcome is Outcome.NOTHING]
    ok = len(CHECKS) - len(idle) - 1
    assert text.count("✓ ok") == ok
    assert text.count("- nothing to check") == len({(e.check.group, e.nothing) for e in idle})
    assert text.rstrip().endswith(
        f"{len(CHECKS)} checks: {ok} ok, {len(idle)} nothing to check, 1 with findings (1 problem)."
    )


def test_a_command_to_copy_is_never_broken_over_lines(said):
    cure = "kubectl -n team describe resourcequota quota-0"
    assert any(cure in line for line in said(MANY).splitlines())


def test_of_many_alike_some_are_told_and_the_rest_counted(said):
    text = said(MANY)
    assert text.count("! warning") == 5
    assert "3 more of this kind" in text
    assert "8 warnings" in text


@pytest.mark.parametrize(
    ("facts", "is_well"),
    [(well(), True), (UNKNOWN, True), (MANY, False), (BROKEN, False)],
)
def test_a_warning_is_a_finding_and_what_was_not_checked_is_none(facts, is_well):
    assert show.is_well(results(facts)) == is_well
    assert show.as_builtins(results(facts))["ok"] == is_well


def test_json_has_every_check_and_all_of_each_finding():
    found = show.as_builtins(results(MANY))
    assert found["version"] == show.FORMAT_VERSION
    assert [each["check"] for each in found["checks"]] == [check.title for check in CHECKS]
    (quotas,) = [each["findings"] for each in found["checks"] if each["findings"]]
    assert len(quotas) == 8
    assert quotas[0] == {
        "kind": "QuotaUsedUp",
        "severity": "warning",
        "about": "team/quota-0",
        "found": "1 of 1 aliyun.com/gpu-mem are used",
        "why": quotas[0]["why"],
        "cure": quotas[0]["cure"],
        "document": manual("troubleshooting.md#what-doctor-finds"),
        "details": [],
    }
