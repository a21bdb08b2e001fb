"""The rules for prometheus-adapter compute what a pod uses, and only what is known."""

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.metrics_table import table
from tests.unit.monitoring.expressions import problems

SAMPLES = Path(__file__).parents[3] / "daemonset" / "samples"
RULES = yaml.safe_load((SAMPLES / "prometheus-adapter.yaml").read_text())["rules"]["custom"]
PODS = ["busy", "idle", "wide", "hidden", "limited", "partial"]
# As the adapter asks for the pods of a Deployment.
GIVEN = {"<<.GroupBy>>": "pod", "<<.LabelMatchers>>": f'namespace="a",pod=~"{"|".join(PODS)}"'}


def query(name: str) -> str:
    (text,) = [rule["metricsQuery"] for rule in RULES if rule["name"]["as"] == name]
    for variable, value in GIVEN.items():
        text = text.replace(variable, value)
    return text


def on(uuid: str, **percent: int):
    """Return series of pods on a GPU, each of one container that uses half of what it asks for."""
    for pod, sm in percent.items():
        labels = f'namespace="a",pod="{pod}",container="main",card="0",uuid="{uuid}"'
        yield f"gpushare_deviceplugin_pod_asked_mib{{{labels}}}", 1024
        yield f"gpushare_deviceplugin_pod_used_mib{{{labels}}}", 512
        if sm is not None:
            yield f"gpushare_deviceplugin_pod_sm_percent{{{labels}}}", sm


def unknown(uuid: str, mib: int):
    yield f'gpushare_deviceplugin_others_used_mib{{card="0",uuid="{uuid}",by="unknown"}}', mib


HELPER = 'namespace="a",pod="{}",container="helper",card="0",uuid="GPU-0"'
SERIES = [
    *on("GPU-0", busy=40, idle=None, wide=50, partial=10),
    *on("GPU-1", wide=100),
    *on("GPU-2", hidden=None),
    *on("GPU-3", limited=None),
    *unknown("GPU-0", 0),
    *unknown("GPU-1", 0),
    *unknown("GPU-2", 500),
    (f"gpushare_deviceplugin_pod_asked_mib{{{HELPER.format('busy')}}}", 1024),
    (f"gpushare_deviceplugin_pod_used_mib{{{HELPER.format('busy')}}}", 1024),
    (f"gpushare_deviceplugin_pod_sm_percent{{{HELPER.format('busy')}}}", 20),
    (f"gpushare_deviceplugin_pod_asked_mib{{{HELPER.format('partial')}}}", 1024),
]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpushare_sm_percent", {"busy": 60, "idle": 0, "wide": 75, "partial": 10}),
        (
            "gpushare_memory_percent",
            {"busy": 75, "idle": 50, "wide": 50, "hidden": 50, "limited": 50},
        ),
    ],
)
def test_a_pod_has_its_use_in_percent_or_no_value(promtool, tmp_path, name, expected):
    case = {
        "interval": "1m",
        "input_series": [{"series": labels, "values": f"{n}x5"} for labels, n in SERIES],
        "promql_expr_test": [
            {
                "expr": query(name),
                "eval_time": "3m",
                "exp_samples": [
                    {"labels": f'{{pod="{pod}"}}', "value": n} for pod, n in expected.items()
                ],
            }
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({"tests": [case]}))
    done = subprocess.run(
        [promtool, "test", "rules", "test.yaml"], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


def test_the_rules_ask_only_for_what_there_is():
    for rule in RULES:
        asked = [rule["seriesQuery"], query(rule["name"]["as"])]
        assert [each for text in asked for each in problems(text, table())] == []


@pytest.mark.parametrize("kind", ["sm", "memory"])
def test_the_sample_autoscalers_use_the_rules_and_the_sample_deployment(kind):
    (found,) = yaml.safe_load_all((SAMPLES / f"hpa-{kind}.yaml").read_text())
    deployment = yaml.safe_load((SAMPLES / "deployment.yaml").read_text())
    (metric,) = found["spec"]["metrics"]
    names = {rule["name"]["as"] for rule in RULES}
    assert metric["pods"]["metric"]["name"] in names
    target = found["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == (deployment["kind"], deployment["metadata"]["name"])
