"""Alert rules load, are tested both ways, and link to what to do."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from gpushare.placement import reasons
from tests.markdown import anchors
from tests.metrics_table import table
from tests.unit.monitoring.busy_cluster import BUSY
from tests.unit.monitoring.expressions import FOLDER, RECORDED, RULES, problems

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCUMENTATION = f"{PROJECT['urls']['Documentation'].replace('/tree/', '/blob/')}/"
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
SEVERITIES = {"critical", "warning", "info"}


def run(promtool: Path, *words: str) -> None:
    done = subprocess.run([promtool, *words], cwd=FOLDER, capture_output=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


def test_prometheus_takes_the_rules_and_they_do_what_their_tests_say(promtool):
    run(promtool, "check", "rules", "--lint=all", "--lint-fatal", "rules.yaml")
    run(promtool, "test", "rules", "rules_test.yaml")


def test_prometheus_takes_the_scrape_configuration(promtool):
    run(promtool, "check", "config", "--syntax-only", "prometheus.yaml")


def test_every_alert_is_tested_when_it_fires_and_when_it_does_not():
    fires, silent = set(), set()
    for case in yaml.safe_load((FOLDER / "rules_test.yaml").read_text())["tests"]:
        for each in case.get("alert_rule_test", ()):
            (fires if each["exp_alerts"] else silent).add(each["alertname"])
    assert fires == silent == ALERTS.keys()


def test_every_recorded_series_is_tested():
    text = (FOLDER / "rules_test.yaml").read_text()
    assert [each for each in RECORDED if f"labels: {each}" not in text] == []


def test_a_busy_healthy_cluster_fires_nothing(promtool, tmp_path):
    silent = [
        {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": []}
        for minute in range(0, 6 * 60, 4)
        for name in ALERTS
    ]
    series = [{"series": name, "values": values} for name, values in BUSY.items()]
    case = {"interval": "1m", "input_series": series, "alert_rule_test": silent}
    rules = {"rule_files": [str(FOLDER / "rules.yaml")], "evaluation_interval": "1m"}
    (tmp_path / "busy.yaml").write_text(yaml.safe_dump({**rules, "tests": [case]}))
    run(promtool, "test", "rules", str(tmp_path / "busy.yaml"))


def test_the_busy_cluster_has_every_metric_that_alerts_ask_for():
    asked = {name for rule in RULES for name in re.findall(r"\bgpushare_\w+(?!\w*:)", rule["expr"])}
    assert asked - {re.sub(r"\{.*", "", name) for name in BUSY} == set()


def test_rules_ask_only_for_what_there_is():
    wrong = {rule["expr"]: list(problems(rule["expr"], table())) for rule in RULES}
    assert {name: found for name, found in wrong.items() if found} == {}


def test_reasons_that_alerts_name_are_texts_of_the_extender():
    (expression,) = [
        rule["expr"] for rule in ALERTS.values() if "waiting_pods_by_reason" in rule["expr"]
    ]
    (pattern,) = re.findall(r'reason=~"([^"]+)"', expression)
    assert set(pattern.split("|")) <= set(reasons.TEXTS)


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_says_how_bad_it_is_what_is_wrong_and_what_to_do(name):
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in SEVERITIES
    assert {"summary", "description", "runbook_url"} == rule["annotations"].keys()
    url = rule["annotations"]["runbook_url"]
    assert url.startswith(DOCUMENTATION)  # a message elsewhere has no relative links
    document, anchor = url.removeprefix(DOCUMENTATION).split("#")
    assert anchor in anchors(ROOT / "docs" / document), f"{document} has no section {anchor}"
