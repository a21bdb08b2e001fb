"""The dashboards use existing metrics, of the chosen Prometheus."""

import json
import re
import subprocess

import pytest
import yaml

from monitoring.__main__ import FOLDER, generated
from tests.metrics_table import table
from tests.unit.monitoring.expressions import problems

FILES = sorted(FOLDER.glob("*.json"))
# What Grafana puts in before it asks.
GIVEN = {"$__rate_interval": "5m", "$node": ".*", "$namespace": ".*"}


def top(path):
    return json.loads(path.read_text())["panels"]


def panels(path):
    """Yield all panels without rows; those of a collapsed row are in it."""
    for each in top(path):
        yield from each["panels"] if each["type"] == "row" else [each]


PANELS = [panel for path in FILES for panel in panels(path)]


def expressions():
    for panel in PANELS:
        for target in panel["targets"]:
            text = target["expr"]
            for variable, value in GIVEN.items():
                text = text.replace(variable, value)
            yield panel["title"], text


def test_every_dashboard_is_what_its_source_says():
    sources = sorted(FOLDER.glob("*.yaml"))
    assert [each.with_suffix(".json") for each in sources] == FILES
    assert [
        path.name for path in sources if path.with_suffix(".json").read_text() != generated(path)
    ] == []


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


def test_legends_and_columns_name_labels_of_their_series():
    """A label that a query has summed away would be shown as {{label}}, or not at all."""
    for panel in PANELS:
        for target in panel["targets"]:
            asked = target["expr"]
            for label in re.findall(r"{{(\w+)}}", target.get("legendFormat", "")):
                groups = re.findall(r"\bby \(([^)]*)\)", asked)
                kept = groups[0].replace(",", " ").split() if groups else [label]
                assert label in kept, panel["title"]


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


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_reads_the_prometheus_that_is_chosen_and_names_no_host(path):
    source = {"type": "prometheus", "uid": "${datasource}"}
    assert all(each["datasource"] == source for each in panels(path))
    assert all(each["datasource"] == source for panel in panels(path) for each in panel["targets"])
    dashboard = json.loads(path.read_text())
    variables = {each["name"] for each in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", path.read_text())) - {"__rate_interval", "__all"}
    assert used == variables
    assert "://" not in path.read_text()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_only_the_first_row_is_open(path):
    rows = [each for each in top(path) if each["type"] == "row"]
    assert [each["collapsed"] for each in rows] == [False] + [True] * (len(rows) - 1)
    assert all(each["panels"] for each in rows[1:])
    assert top(path)[0] == rows[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_panel_has_a_position_and_texts_of_its_own(path):
    groups = [top(path), *(each["panels"] for each in top(path) if each["type"] == "row")]
    numbers = [panel["id"] for group in groups for panel in group]
    assert len(numbers) == len(set(numbers))
    for group in groups:
        places = [
            (each["gridPos"]["y"] + line, each["gridPos"]["x"] + column)
            for each in group
            for line in range(each["gridPos"]["h"])
            for column in range(each["gridPos"]["w"])
        ]
        assert len(places) == len(set(places))
        assert all(column < 24 for _, column in places)
    texts = [each["title"] for each in panels(path)]
    texts += [each["description"] for each in panels(path) if "description" in each]
    assert len(texts) == len(set(texts))
