"""gpushare simulate as it is typed: what it prints and writes, and what it exits with."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml
from click.testing import CliRunner

from gpusharectl.app import cli
from tests.markdown import ROOT

SCENE = """kind: Node
metadata: {name: n1}
gpus: 2 x 16
---
kind: Pod
metadata: {name: first-pod}
spec: {containers: [{name: main, resources: {limits: {aliyun.com/gpu-mem: 12}}}]}
---
kind: Pod
metadata: {name: second-pod}
spec: {containers: [{name: main, resources: {limits: {aliyun.com/gpu-mem: 12}}}]}
at: 10s
---
kind: Pod
metadata: {name: third-pod}
spec: {containers: [{name: main, resources: {limits: {aliyun.com/gpu-mem: 8}}}]}
at: 20s
"""


@pytest.fixture
def scene(tmp_path):
    path = tmp_path / "scene.yaml"
    path.write_text(SCENE)
    return str(path)


def simulate(*arguments, code=0, stdin=None, env=None):
    found = CliRunner().invoke(cli, ["simulate", *arguments], input=stdin, env=env)
    assert found.exit_code == code, found.output
    return found.output


def test_each_step_is_drawn_with_the_pods_names_in_the_bars(scene):
    shown = simulate(scene)
    assert shown.count("\n── ") == 3
    assert "+ second-pod to n1, GPU 1 (12 GiB)" in shown
    bars = re.findall(r"GPU (\d) ▕(.*)▏ (\d+) GiB of 16 GiB free", shown)
    assert [(index, left) for index, _, left in bars[-2:]] == [("0", "4"), ("1", "4")]
    assert re.fullmatch(r"first-pod█+·+", bars[-2][1])
    assert (
        "third-pod is Pending: requests 8 GiB on one GPU; the most free on one GPU is 4 GiB (n1, "
        "GPU 0). It fits if it requests 4 GiB or less (`aliyun.com/gpu-mem: 4`), or when one of 2 "
        "pods ends, for example default/first-pod." in shown
    )
    assert "n1: no single GPU has enough free aliyun.com/gpu-mem" in shown
    assert "GPU 0 has 4 GiB free, GPU 1 has 4 GiB free" in shown
    assert "Never simulated: kube-scheduler's own scores" in shown
    assert "\x1b" not in shown


def test_one_step_alone_is_shown_where_it_is_asked_for(scene):
    assert simulate(scene, "--step", "2").count("\n── ") == 1
    assert "── 20s" in simulate(scene, "--last")
    assert "the steps are 1 to 3" in simulate(scene, "--step", "4", code=2)
    simulate(scene, "--step", "1", "--last", code=2)


def test_stdin_and_several_files_are_one_scene(scene, tmp_path):
    more = tmp_path / "more.yaml"
    more.write_text("kind: Node\nmetadata: {name: n2}\ngpus: 1 x 16\n")
    last = json.loads(simulate("-f", "-", str(more), "--last", "-o", "json", stdin=SCENE))
    assert last["steps"][0]["waiting"] == []
    assert [node["name"] for node in last["steps"][0]["nodes"]] == ["n1", "n2"]


def test_json_is_one_object_with_all_steps(scene):
    found = json.loads(simulate(scene, "-o", "json"))
    assert (found["version"], found["unitMiB"]) == (1, 1024)
    assert [step["at"] for step in found["steps"]] == [0, 10, 20]
    last = found["steps"][-1]
    assert (last["used"], last["units"], last["largestFree"]) == (24, 32, 4)
    [group] = last["waiting"]
    assert group["pods"] == [{"namespace": "default", "name": "third-pod", "since": 20}]
    assert group["unitsPerCard"] == 8
    assert group["sentence"].startswith("requests 8 GiB on one GPU; the most free")


def test_yaml_is_the_same_as_json(scene):
    shown = yaml.safe_load(simulate(scene, "-o", "yaml"))
    assert shown == json.loads(simulate(scene, "--output", "json"))


def test_policies_are_flags(scene):
    def cards(*flags):
        found = json.loads(simulate(scene, "--last", "-o", "json", *flags))
        return [
            [pod["name"] for pod in card["pods"]] for card in found["steps"][0]["nodes"][0]["cards"]
        ]

    small = SCENE.replace("gpu-mem: 12", "gpu-mem: 4")
    Path(scene).write_text(small)
    assert cards() == [["first-pod", "second-pod", "third-pod"], []]
    assert cards("--gpu-policy", "spread") == [["first-pod", "third-pod"], ["second-pod"]]
    assert "is 256 MiB; nodes by spread" in simulate(
        scene, "--node-policy", "spread", "--memory-unit", "256MiB"
    )
    simulate(scene, "--node-policy", "best", code=2)
    simulate(scene, "--memory-unit", "1KiB", code=2)


def test_all_must_run_is_an_exit_code(scene):
    told = simulate(scene, "--all-must-run", "--last", code=1)
    assert "1 pod is Pending at the end: third-pod" in told
    simulate(scene, code=0)
    simulate("--example", "bind", "--all-must-run", "--last")


@pytest.mark.parametrize("resource", ["aliyun.com/gpu-memory", "nvidia.com/gpu", "amd.com/gpu"])
def test_all_must_run_fails_for_a_pod_that_wants_gpus_in_another_way(scene, resource):
    wanted = f"{{limits: {{{resource}: 1}}}}"
    Path(scene).write_text(
        "{kind: Node, metadata: {name: n1}, gpus: 1 x 16}\n---\nkind: Pod\n"
        f"metadata: {{name: other, uid: u}}\n"
        f"spec: {{containers: [{{name: main, resources: {wanted}}}]}}\n"
    )
    told = simulate(scene, "--all-must-run", code=1)
    assert "1 pod is Pending at the end: other" in told


SPARK = """kind: SparkApplication
metadata: {name: pi}
spec: {executor: {template: {spec: {containers: [{resources: {limits: {aliyun.com/gpu-mem: 8}}}]}}}}
"""
NOT_READ = (
    "SparkApplication pi: its pods request GPU memory, and gpushare does not read this kind. "
    "Write its pods as a Job"
)


def test_a_workload_that_is_not_read_is_said_first_and_refused_where_all_must_run(scene, tmp_path):
    spark = tmp_path / "spark.yaml"
    spark.write_text(SPARK)
    shown = simulate(scene, str(spark))
    assert shown.startswith(f"Not simulated here: {NOT_READ}")
    head = json.loads(CliRunner().invoke(cli, ["simulate", scene, str(spark), "-ojson"]).stdout)
    assert head["leftOut"][0].startswith(NOT_READ)
    assert NOT_READ in simulate(scene, str(spark), "--all-must-run", code=2)
    assert NOT_READ in simulate(str(spark), code=2)


def test_a_workload_that_does_not_list_its_containers_is_refused_where_all_must_run(scene):
    spec = "{predictor: {model: {resources: {limits: {aliyun.com/gpu-mem: 8}}}}}"
    service = f"kind: InferenceService\nmetadata: {{name: llm}}\nspec: {spec}\n"
    Path(scene).write_text(f"{SCENE}---\n{service}")
    told = simulate(scene, "--all-must-run", code=2)
    assert "InferenceService llm: its pods request GPU memory" in told


def test_a_workload_of_a_cluster_needs_not_be_read_if_its_pods_are_in_the_files(scene):
    served = SCENE.replace("{name: first-pod}", "{name: first-pod, uid: v}").replace("12", "4")
    spark = SPARK.replace("name: pi", "name: pi, uid: u")
    namespace = "kind: Namespace\nmetadata: {name: default}\n"
    Path(scene).write_text(f"{served}---\n{spark}---\n{namespace}")
    assert "Ignored: kind SparkApplication (1)" in simulate(scene, "--all-must-run")


def test_a_file_of_which_nothing_is_simulated_is_refused_where_all_must_run(scene, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text("kind: Service\nmetadata: {name: s}\n---\nkind: ConfigMap\n")
    small = SCENE.replace("gpu-mem: 12", "gpu-mem: 4")
    Path(scene).write_text(small)
    simulate(scene, str(other))
    told = simulate(scene, str(other), "--all-must-run", code=2)
    assert f"nothing in {other} is simulated: it has only Service, ConfigMap." in told
    Path(scene).write_text(f"{small}---\n{other.read_text()}")
    simulate(scene, "--all-must-run")


def test_a_kind_of_another_group_is_not_taken_for_the_one_that_is_read(scene, tmp_path):
    job = tmp_path / "job.yaml"
    spark = SPARK.replace("SparkApplication", "Job")
    job.write_text(f"apiVersion: batch.volcano.sh/v1alpha1\n{spark}")
    told = simulate(scene, str(job), "--all-must-run", code=2)
    assert "Job pi of batch.volcano.sh/v1alpha1: its pods request GPU memory" in told


def test_a_file_without_objects_is_refused(scene, tmp_path):
    empty = tmp_path / "empty.yaml"
    empty.write_text("# nothing was rendered\n---\n")
    assert f"{empty} has no objects" in simulate(scene, str(empty), code=2)


def test_an_empty_stdin_points_at_the_command_before_the_pipe(scene):
    told = simulate("-", scene, stdin="\n", code=2)
    assert told == "Error: stdin is empty: did the command before `|` fail?\n"


def test_a_suspended_job_is_no_success_where_all_must_run(scene, tmp_path):
    sample = (ROOT / "daemonset/samples/gang-job.yaml").read_text()
    job = tmp_path / "job.yaml"
    job.write_text(sample.replace("spec:\n", "spec:\n  suspend: true\n", 1))
    told = simulate(scene, str(job), "--all-must-run", code=2)
    assert "Job gang-job: suspended, so it creates no pods. Remove suspend: true" in told


def test_a_drawing_says_what_it_leaves_out(scene, tmp_path):
    Path(scene).write_text(f"{SCENE}---\nkind: Service\nmetadata: {{name: s}}\n")
    drawn = CliRunner().invoke(cli, ["simulate", scene, "--svg", str(tmp_path / "step.svg")])
    assert "Ignored: kind Service" in drawn.stderr
    assert "Ignored" not in drawn.stdout


def test_a_drawing_is_one_step_to_scale(scene, tmp_path):
    svg = tmp_path / "step.svg"
    simulate(scene, "--svg", str(svg), "--step", "1")
    space = "{http://www.w3.org/2000/svg}"
    root = ET.parse(svg).getroot()  # noqa: S314 - our own
    bars = [float(each.get("width")) for each in root.iter(f"{space}rect")]
    assert bars[1] / bars[0] == pytest.approx(12 / 16, abs=0.01)
    texts = ["".join(each.itertext()) for each in root.iter(f"{space}text")]
    assert {"n1  12 GiB of 32 GiB used", "first-pod 12 GiB", "4 GiB of 16 GiB free"} <= {*texts}
    assert "n1, GPU 1: empty, 16 GiB free" in root.get("aria-label")
    simulate(scene, "--svg", str(svg))
    assert "third-pod is Pending: requests 8 GiB on one GPU" in svg.read_text()


def test_names_from_a_file_are_text_wherever_they_are_shown(tmp_path):
    scene = tmp_path / "scene.yaml"
    scene.write_text(SCENE.replace("2 x 16", '{units: 16, model: "<b>[red]&"}'))
    svg = tmp_path / "step.svg"
    simulate(str(scene), "--svg", str(svg))
    assert "<b>" not in svg.read_text()
    assert "<b>[red]&" in simulate(str(scene))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "write files with Nodes and Pods, or --example NAME"),
        (("/nowhere/x.yaml",), "/nowhere/x.yaml cannot be read: No such file"),
        (("--example", "none"), "unknown example 'none': the examples are bind, "),
        (("--example", "bind", "x.yaml"), "use only one of them"),
        (("--example", "bind", "-o", "json", "--svg", "x"), "use only one of them"),
        (("--list-examples", "x.yaml"), "use only one of them"),
        (("--example", "bind", "--svg", "/nowhere/x"), "/nowhere/x cannot be written"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_line(arguments, told):
    assert told in simulate(*arguments, code=2)


def test_a_bad_file_is_told_with_its_line(scene):
    Path(scene).write_text(f"{SCENE}until: 30s\n")
    assert f"{scene}:18: until: there is no such key" in simulate(scene, code=2)
    pod_only = "kind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c}]}\n"
    assert "the files have no Nodes" in simulate("-", stdin=pod_only, code=2)


def test_examples_are_listed_and_run_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [line.split()[0] for line in simulate("--list-examples").splitlines()]
    assert "filter" in names
    for name in names:
        assert "Never simulated" in simulate("--example", name)
    assert "? notebook-2 is Pending" in simulate("--example", "filter", "--step", "3")


def test_many_nodes_are_shown_by_those_where_something_happened(tmp_path):
    nodes = "---\n".join(
        f"kind: Node\nmetadata: {{name: n{number:03}}}\ngpus: 8 x 16\n" for number in range(100)
    )
    wish = "spec: {nodeSelector: {kubernetes.io/hostname: n077}, "
    scene = tmp_path / "scene.yaml"
    scene.write_text(
        nodes + "---\n" + "---\n".join(SCENE.split("---\n")[1:]).replace("spec: {", wish)
    )
    shown = simulate(str(scene), "--last")
    assert "n077" in shown
    assert "and 80 more nodes" in shown
    assert len(json.loads(simulate(str(scene), "--last", "-o", "json"))["steps"][0]["nodes"]) == 100


def test_color_is_only_for_a_terminal_that_wants_it(scene):
    terminal = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    assert "\x1b[30;4" in simulate(scene, env=terminal)
    plain = simulate(scene, env={**terminal, "NO_COLOR": "1"})
    assert "\x1b" not in plain
    assert "first-pod██" in plain


LABELLED = """kind: Node
metadata:
  name: n1
  labels: {nvidia.com/gpu.product: L4, nvidia.com/gpu.memory: "23034", nvidia.com/gpu.count: "1"}
status: {capacity: {nvidia.com/gpu: "1"}, allocatable: {nvidia.com/gpu: "1"}}
---
kind: Pod
metadata: {name: first-pod}
spec: {containers: [{name: main, resources: {limits: {aliyun.com/gpu-mem: 22}}}]}
"""


def test_a_reserve_is_kept_of_gpus_that_are_not_shared_yet(tmp_path):
    path = tmp_path / "scene.yaml"
    path.write_text(LABELLED)
    assert "first-pod to n1" in simulate(str(path))
    assert "(the largest has 21 GiB)" in simulate(str(path), "--reserve", "5%")
    assert "write an amount such as 512Mi" in simulate(str(path), "--reserve", "5", code=2)


def test_a_pod_that_requires_isolation_goes_where_a_file_says_that_the_driver_limits(tmp_path):
    path = tmp_path / "scene.yaml"
    path.write_text(
        """kind: Node
metadata: {name: old}
gpus: {units: 16, enforces: framework}
---
kind: Node
metadata: {name: new}
gpus: {units: 16, enforces: driver}
---
kind: Pod
metadata: {name: strict, annotations: {gpushare.aliyun.com/isolation: required}}
spec: {containers: [{name: main, resources: {limits: {aliyun.com/gpu-mem: 12}}}]}
---
kind: Pod
metadata: {name: strict-too, annotations: {gpushare.aliyun.com/isolation: required}}
spec: {containers: [{name: main, resources: {limits: {aliyun.com/gpu-mem: 12}}}]}
"""
    )
    shown = simulate(str(path))
    assert "strict to new" in shown
    assert "strict-too is Pending" in shown
    path.write_text(path.read_text().replace("enforces: driver", "enforces: gpu"))
    assert "write driver or framework or nothing" in simulate(str(path), code=2)
