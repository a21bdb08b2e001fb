"""The dashboard uses existing metrics, of the chosen Prometheus."""

import json
import re
import subprocess
from pathlib import Path

import yaml

from tests.metrics_table import table
from tests.unit.monitoring.expressions import problems

FILE = Path(__file__).parents[3] / "monitoring" / "dashboard.json"
DASHBOARD = json.loads(FILE.read_text())
PANELS = [each for each in DASHBOARD["panels"] if each["type"] != "row"]
# What Grafana puts in before it asks.
GIVEN = {"$__rate_interval": "5m", "$node": ".*"}


def expressions():
    for panel in PANELS:
        for target in panel["targets"]:
            text = target["expr"]
            for variable, value in GIVEN.items():
                text = text.replace(variable, value)
            yield panel["title"], text


def test_prometheus_understands_every_expression(promtool, tmp_path):
    rules = [
        {"record": f"panel:{number}", "expr": text}
        for number, (_, text) in enumerate(expressions())
    ]
    (tmp_path / "rules.yaml").write_text(
        yaml.safe_dump({"groups": [{"name": "g", "rules": rules}]})
    )
    done = subprocess.run(
        [promtool, "check", "rules", tmp_path / "rules.yaml"], capture_output=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    assert f"{len(rules)} rules found" in done.stdout.decode()


def test_panels_ask_only_for_what_there_is():
    wrong = {(title, text): list(problems(text, table())) for title, text in expressions()}
    assert {each: found for each, found in wrong.items() if found} == {}


def test_amounts_of_memory_have_a_unit_that_grafana_writes_in_gib():
    shown = 0
    for panel in PANELS:
        asked = [each["expr"] for each in panel["targets"]]
        amounts = [each for each in asked if "count(" not in each and " / " not in each]
        in_units = [each for each in amounts if re.search(r"_units\b", each)]
        assert all("gpushare_node_unit_bytes" in each for each in in_units), panel["title"]
        if found := re.findall(r"_(bytes|mib)\b", " ".join(amounts)):
            shown += 1
            config = json.dumps(panel["fieldConfig"])
            unit = {"bytes": "bytes", "mib": "mbytes"}[found[0]]
            assert re.search(f'"(unit|value)": "{unit}"', config), panel["title"]
    assert shown > 10


def test_it_reads_the_prometheus_that_is_chosen_and_names_no_host():
    source = {"type": "prometheus", "uid": "${datasource}"}
    assert all(each["datasource"] == source for each in PANELS)
    assert all(each["datasource"] == source for panel in PANELS for each in panel["targets"])
    variables = {each["name"] for each in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", FILE.read_text())) - {"__rate_interval"}
    assert used == variables
    assert "://" not in FILE.read_text()


def test_every_panel_has_a_place_and_a_name_of_its_own():
    assert len({each["id"] for each in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    places = [
        (each["gridPos"]["y"] + row, each["gridPos"]["x"] + column)
        for each in DASHBOARD["panels"]
        for row in range(each["gridPos"]["h"])
        for column in range(each["gridPos"]["w"])
    ]
    assert len(places) == len(set(places))
