"""What pods used by Prometheus decides what they would request."""

import json

import pytest

from tests.unit.gpusharectl.simulate.dumps import dump, labels, node, pod
from tests.unit.gpusharectl.simulate.test_command import simulate

CLUSTER = dump(
    node("n", 4, labels=labels(4, 81920)),
    pod("trainer", "n", gpu=2),
    pod("notebook", "n", gpu=1),
    pod("new", "n", gpu=1),
).decode()
EXPORTER = {"namespace": "monitoring", "pod": "dcgm-exporter-x7k2p", "job": "dcgm-exporter"}


def series(name, gpu, mib, prefix="exported_", **more):
    labels = {f"{prefix}namespace": "ml", f"{prefix}pod": name, "gpu": str(gpu), "Hostname": "n"}
    return {"metric": EXPORTER | labels, "value": [1764400000.123, str(mib)], **more}


def answer(*found, kind="vector"):
    return {"status": "success", "data": {"resultType": kind, "result": list(found)}}


@pytest.fixture
def told(tmp_path):
    def tell(content, *options, code=0):
        file = tmp_path / "usage.json"
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        shown = simulate("-", "--usage", str(file), *options, stdin=CLUSTER, code=code)
        return shown.replace(f"{file}", "usage.json")

    return tell


MEASURED = (series("trainer", 0, 30000), series("trainer", 1, 31000), series("notebook", 2, 5000))


def test_each_pod_requests_the_most_that_it_used_of_a_gpu(told):
    shown = told(answer(*MEASURED))
    assert (
        "If each of the 3 pods requested the most that it used of a GPU (1 without a measured use "
        "keeps its GPUs whole), they would use 3 GPUs instead of 4." in shown
    )
    # 80 - 31 - 5 and 80 - 31 GiB are free beside the pods, and a GPU
    assert "Then 1 GPU could be given back or 21 notebooks of 8 GiB would fit." in shown


def test_pods_that_prometheus_does_not_know_need_what_is_assumed(told):
    shown = told(answer(*MEASURED), "--assume-memory", "20", "-o", "json")
    assumed = json.loads(shown)["gain"]["assumed"]
    assert (assumed["by"], assumed["measured"], assumed["unknown"]) == ("usage", 2, 0)
    assert assumed["gpus"] == 2


@pytest.mark.parametrize("prefix", ["exported_", ""])
def test_labels_are_those_of_the_exporter_or_renamed_by_prometheus(told, prefix):
    shown = told(answer(series("notebook", 0, 5000, prefix)), "-o", "json")
    assert json.loads(shown)["gain"]["assumed"]["measured"] == 1


def test_a_range_and_promtools_list_are_read_too(told):
    values = {"values": [[1, "100"], [2, "20000"]]}
    one = {**series("notebook", 0, 0), **values}
    del one["value"]
    for content in (answer(one, kind="matrix"), [one]):
        told(content, "-o", "json")
        assert "requested the most that it used" in told(content)


UTILIZATION = series("notebook", 0, 97)
UTILIZATION["metric"]["__name__"] = "DCGM_FI_DEV_GPU_UTIL"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "expected the JSON of Prometheus' /api/v1/query?query=max_over_time("),
        ({"status": "success"}, "found no vector and no matrix"),
        ({"status": "error", "error": "parse error"}, "Prometheus answered: parse error"),
        (answer(series("notebook", 0, "NaN")), "ml/notebook used 'NaN': expected MiB"),
        (answer(series("notebook", 0, 5 * 2**30)), "ml/notebook used '5368709120': expected MiB"),
        (answer({"metric": {"gpu": "0"}, "value": [1, "4"]}), "no series names a pod"),
        (answer({"metric": {"pod": "a", "namespace": "b"}}), "pod b/a has no value"),
        (answer("x"), "expected the JSON of Prometheus'"),
        (answer(UTILIZATION), "expected DCGM_FI_DEV_FB_USED, found DCGM_FI_DEV_GPU_UTIL"),
    ],
)
def test_an_answer_that_cannot_be_used_is_told(told, content, why):
    shown = told(content, code=2)
    assert shown.startswith("Error: usage.json: ")
    assert why in shown


def test_an_answer_that_is_given_as_a_file_with_objects_is_told(tmp_path):
    file = tmp_path / "usage.json"
    file.write_text(json.dumps(answer(*MEASURED)))
    assert f"write --usage {file}" in simulate("-", str(file), stdin=CLUSTER, code=2)
