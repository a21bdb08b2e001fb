"""Files for the simulator: what is understood, and how what is wrong is told."""

import contextlib

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpushare.errors import SettingsError
from gpushare.placement.rank import Policies
from gpusharectl.manifests.yaml_lines import read
from gpusharectl.simulate.run import Run
from gpusharectl.simulate.scenario import build

POD = """kind: Pod
metadata: {name: a}
spec:
  containers:
    - name: main
      resources: {limits: {aliyun.com/gpu-mem: 8}}
"""


def scenario(text):
    return build(read("f.yaml", text.encode()))


def wrong(text):
    with pytest.raises(SettingsError) as told:
        scenario(text)
    return str(told.value)


def units(text):
    [event] = scenario(f"kind: Node\nmetadata: {{name: n}}\ngpus: {text}").nodes
    return event.node


def test_times_are_written_as_people_write_them():
    for text, seconds in (("10s", 10), ("1m30s", 90), ("2h", 7200), ("15", 15), ("0s", 0)):
        [event] = scenario(f"{POD}at: {text}").pods
        assert event.at == seconds
    [event] = scenario(f"{POD}delete: 1m").pods
    assert (event.at, event.delete) == (0, 60)


@pytest.mark.parametrize("text", ["10 s", "soon", "-1", "1d", "''", "1.5", "[1]", "1s1m"])
def test_no_time_is_guessed(text):
    assert wrong(f"{POD}at: {text}").startswith("f.yaml:7: at: ")


def test_who_goes_comes_before():
    assert wrong(f"{POD}at: 10s\ndelete: 10s") == "f.yaml:8: delete: 10s is not after at: 10s"


def test_a_slip_of_the_pen_is_named_with_file_line_and_place():
    assert wrong(POD.replace("limits", "limit")) == (
        "f.yaml:6: spec.containers[0].resources.limit: there is no such key: did you mean limits?"
    )
    assert wrong(POD.replace("containers", "container")).startswith("f.yaml:4: spec.container:")
    assert "did you mean delete?" in wrong(f"{POD}deleted: 10s")
    assert (
        wrong(POD.replace("Pod", "Pods")) == "f.yaml:1: kind: unknown kind Pods: did you mean Pod?"
    )
    both = POD + "---\n" + POD.replace("metadata: {name: a}", "metadata:\n  nam: a")
    assert wrong(both).startswith("f.yaml:10: metadata.nam: there is no such key")


def test_what_an_api_server_sent_may_have_keys_of_tomorrow():
    text = POD.replace("{name: a}", "{name: a, uid: u, tomorrow: 1}") + "  tomorrow: 1\n"
    assert [each.pod.key for each in scenario(text).pods] == ["default/a"]


def test_wrong_kinds_of_values_are_named_with_their_line():
    told = wrong(POD.replace("{name: a}", "{name: a, labels: {x: 1}}"))
    assert told.startswith("f.yaml:2: metadata.labels")
    assert "write it in quotes" in told
    assert wrong(POD.replace("aliyun.com/gpu-mem: 8", "aliyun.com/gpu-mem: much")).startswith(
        "f.yaml:3: spec: container main: aliyun.com/gpu-mem: 'much' is not a Kubernetes quantity"
    )
    named = POD.replace("name: a", "name: A_b")
    assert wrong(named).startswith("f.yaml:2: metadata.name: expected")
    assert wrong("kind: Pod\nmetadata: {name: a}").startswith("f.yaml:1: spec.containers")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [}", "f.yaml:1: invalid YAML"),
        ("a: 1\nb: {c: 1, c: 2}", "f.yaml:2: 'c' is a duplicate key, first on line 2"),
        ("- a", "f.yaml:1: expected a Kubernetes object"),
        ("hello", "f.yaml:1: expected a Kubernetes object"),
        ("metadata: {}", "f.yaml:1: expected a Kubernetes object with a kind"),
        ("kind: Pod", "f.yaml:1: metadata: expected"),
        ('kind: "\\e[31m"', "f.yaml:1: '\\x1b[31m' has characters that cannot be shown"),
        ("? [a]\n: b", "f.yaml:1: a key that is not a scalar"),
        (
            "kind: Pod\nname: {{ .Values.a }}",
            "f.yaml:2: a key that is not a scalar (a Helm template?",
        ),
        ("kind: List\nitems: 3", "f.yaml:2: items: expected a list"),
        ("kind: List\nitems: [3]", "f.yaml:2: items[0]: expected"),
        ("!!python/object:os.system x", "f.yaml:1: invalid YAML"),
        ("[" * 100 + "]" * 100, "f.yaml:1: is nested too deep"),
        ("kind: Deployment\nmetadata: {name: d}", "f.yaml:1: spec.template: is missing"),
    ],
)
def test_what_is_no_object_is_refused_with_its_line(text, told):
    assert wrong(text).startswith(told)


def test_no_bytes_make_a_stack_trace():
    for content in (b"\xff\xfe\x00", b"\x80", b"\x00", b"&a [*a]", b"*a", b"%"):
        with pytest.raises(SettingsError):
            list(build(read("f", content)).pods)


@pytest.mark.parametrize("text", ["[", "{a: ", "- ", "? ", "[]]", "a: {"])
def test_what_is_nested_without_an_end_is_refused_and_ends_nothing(text):
    assert wrong(text * 200_000).startswith("f.yaml:1: ")


WORDS = [
    "kind metadata spec status at delete cards unit items name namespace labels annotations uid",
    "containers initContainers resources limits requests aliyun.com/gpu-mem cpu template replicas",
    "parallelism completions allocatable capacity taints tolerations affinity nodeAffinity ports",
    "nodeName nodeSelector priority overhead schedulingGates volumes phase count units health",
]
KEYS = st.sampled_from(" ".join(WORDS).split()) | st.integers()
VALUES = ["Node", "Pod", "Deployment", "Job", "List", "PodList", "a", "2 x 16", "10s", "", "8Gi"]
ANYTHING = st.recursive(
    st.sampled_from(VALUES) | st.none() | st.booleans() | st.integers(-3, 10**20) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=25,
)
LIKELY = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["Node", "Pod", "Deployment", "Job", "List"]),
        "metadata": st.just({"name": "a", "uid": "u"}) | ANYTHING,
    },
    optional=dict.fromkeys(
        ("spec", "status", "at", "delete", "gpus", "cards", "unit", "items"), ANYTHING
    ),
)


@given(st.lists(LIKELY | ANYTHING, max_size=3))
def test_whatever_stands_in_a_file_is_used_or_refused_in_words(values):
    # Any other error fails.
    with contextlib.suppress(SettingsError):
        for _ in Run(scenario(yaml.safe_dump_all(values)), Policies()).steps():
            pass


def test_short_gpus_make_the_inventory_that_a_plugin_would_write():
    node = units("[2 x 16 Tesla T4, {units: 80, model: A100, health: unhealthy}]")
    assert node.allocatable["aliyun.com/gpu-mem"] == 32
    assert node.capacity["aliyun.com/gpu-mem"] == 112
    cards = yaml.safe_load(node.annotations["gpushare.aliyun.com/inventory"])["cards"]
    assert [(c["uuid"], c["model"], c["units"], c["memMiB"], c["health"]) for c in cards] == [
        ("GPU-n-0", "Tesla T4", 16, 16384, "healthy"),
        ("GPU-n-1", "Tesla T4", 16, 16384, "healthy"),
        ("GPU-n-2", "A100", 80, 81920, "unhealthy"),
    ]
    assert node.labels["kubernetes.io/hostname"] == "n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("2", "f.yaml:3: gpus: 2: write a number of GPUs"),
        ("2 x", "f.yaml:3: gpus: '2 x'"),
        ("0 x 16", "f.yaml:3: gpus.count: 0: write a number from 1"),
        ("65 x 16", "f.yaml:3: gpus.count: 65"),
        ("[]", "f.yaml:3: gpus: 0 GPUs"),
        ("[40 x 1, 40 x 1]", "f.yaml:3: gpus: 80 GPUs"),
        ("{units: a}", "f.yaml:3: gpus.units: 'a': write a number"),
        ("{model: T4}", "f.yaml:3: gpus.units: is missing"),
        ("[{units: 1, health: ill}]", "f.yaml:3: gpus[0].health: 'ill': write healthy or"),
        ("[{units: 1, size: 2}]", "f.yaml:3: gpus[0].size: unknown key"),
        ("[{units: 1, model: 4}]", "f.yaml:3: gpus[0].model: 4: write it in quotes"),
    ],
)
def test_cards_that_cannot_be_read_are_refused(text, told):
    assert wrong(f"kind: Node\nmetadata: {{name: n}}\ngpus: {text}").startswith(told)


def test_the_unit_is_that_of_the_first_node_that_says_one():
    node = "kind: Node\nmetadata: {name: n}\n"
    assert scenario(node + "gpus: 1 x 8").unit_mib == 1024
    assert scenario(node + "gpus: 1 x 8\nunit: MiB").unit_mib == 1
    assert wrong(node + "gpus: 1 x 8\nunit: 3").startswith("f.yaml:4: unit: 3: write GiB")
    assert wrong(node + "unit: MiB").startswith("f.yaml:3: unit: only together with gpus")


def test_what_kubectl_prints_is_read_as_it_is():
    text = f"""apiVersion: v1
kind: List
items:
- kind: Node
  metadata: {{name: n}}
  gpus: 1 x 8
- {POD.replace(chr(10), chr(10) + "  ")}
"""
    found = scenario(text)
    assert [event.node.name for event in found.nodes] == ["n"]
    assert [event.pod.key for event in found.pods] == ["default/a"]


def test_templates_make_as_many_pods_as_they_say():
    template = POD.replace("kind: Pod\nmetadata: {name: a}\n", "").replace("\n", "\n    ")
    for kind, more, names in (
        ("Deployment", "replicas: 2", ["d-1", "d-2"]),
        ("StatefulSet", "replicas: 2", ["d-0", "d-1"]),
        ("ReplicaSet", "minReadySeconds: 1", ["d-1"]),
        ("Job", "parallelism: 3\n  completions: 2", ["d-1", "d-2"]),
        ("Deployment", "replicas: 0", []),
        ("Deployment", "replicas: null", ["d-1"]),
        ("Job", "suspend: false", ["d-1"]),
        ("Job", "suspend: true", []),
    ):
        text = f"kind: {kind}\nmetadata: {{name: d, namespace: x}}\nspec:\n  {more}\n  template:\n"
        found = scenario(f"{text}    {template}\nat: 5s")
        assert [event.pod.key for event in found.pods] == [f"x/{name}" for name in names]
        assert all(event.at == 5 for event in found.pods)
        suspended = ["Job d: suspended, so it creates no pods. Remove suspend: true"]
        assert list(found.not_read.lines()) == (suspended if "true" in more else [])


def test_nobody_is_there_twice_at_one_time():
    assert wrong(f"{POD}---\n{POD}").startswith("f.yaml:9: metadata.name: pod default/a is defined")
    assert len(scenario(f"{POD}delete: 5s\n---\n{POD}at: 5s").pods) == 2
    ignored = POD.replace("aliyun.com/gpu-mem", "cpu")
    assert not scenario(f"{ignored}---\n{ignored}").pods
    node = "kind: Node\nmetadata: {name: n}\n"
    assert wrong(f"{node}---\n{node}").endswith("node n is defined twice at 0s")
    cards = f"{node}gpus: 1 x 8\n"
    for twice in (f"{cards}---\n{cards}", f"{cards}status: {{}}\n---\n{cards}"):
        assert wrong(twice).endswith("node n is defined twice at 0s")


def test_what_decides_nothing_here_is_counted_and_named():
    other = "kind: Service\nmetadata: {name: s}\n"
    plain = POD.replace("aliyun.com/gpu-mem", "cpu").replace("name: a", "name: b")
    over = POD.replace("name: a", "name: c") + "status: {phase: Succeeded}\n"
    found = scenario(f"{POD}---\n{other}---\n{plain}---\n{over}")
    assert [event.pod.metadata.name for event in found.pods] == ["a"]
    assert list(found.ignored.lines()) == [
        "default/b: Pending and does not request aliyun.com/gpu-mem",
        "kind Service (1)",
        "pods that have ended (1)",
    ]


def test_what_kube_scheduler_also_decides_by_is_named():
    text = f"{POD}  volumes: [{{name: v}}]\n  priorityClassName: high\n"
    assert sorted(scenario(text).named) == [
        "priorityClassName (add the PriorityClass, or write spec.priority; 0 was assumed)",
        "volumes",
    ]


def test_of_pods_that_have_no_effect_nothing_is_named_that_decides():
    alone = POD.replace("aliyun.com/gpu-mem", "cpu").replace(
        "{name: a}", "{name: w, labels: {scheduling.x-k8s.io/pod-group: g}}"
    )
    found = scenario(f"{POD}---\n{alone}  volumes: [{{name: v}}]\n")
    assert not found.named
    assert list(found.ignored.lines()) == [
        "default/w: Pending and does not request aliyun.com/gpu-mem"
    ]


@pytest.mark.parametrize("containers", ["containers", "initContainers"])
def test_host_ports_of_any_container_are_named(containers):
    pod = yaml.safe_load(POD)
    ports = [{"containerPort": 1, "hostPort": 80}]
    pod["spec"].setdefault(containers, [{"name": "b"}])[0]["ports"] = ports
    assert list(scenario(yaml.safe_dump(pod)).named) == ["host ports"]


def test_an_amount_with_a_point_is_what_is_written():
    [event] = scenario(POD.replace("aliyun.com/gpu-mem: 8", "aliyun.com/gpu-mem: 8, cpu: 0.5")).pods
    assert event.pod.containers[0].limits["cpu"] == "0.5"


def test_a_request_without_a_limit_is_refused_as_by_the_api_server():
    text = POD.replace("limits", "requests")
    assert wrong(text) == (
        "f.yaml:6: spec.containers[0].resources.requests.aliyun.com/gpu-mem: container main: "
        "Kubernetes refuses 8: Limit must be set for non overcommitable resources: "
        "write limits: {aliyun.com/gpu-mem: 8}"
    )
    deployment = (
        "kind: Deployment\nmetadata: {name: d}\nspec:\n  template:\n    spec:\n"
        "      containers: [{name: c, resources: {requests: {nvidia.com/gpu: 1}}}]\n"
    )
    assert wrong(deployment).startswith("f.yaml:6: spec.template.spec.containers[0].resources.")


def test_what_an_api_server_sent_is_not_judged_again():
    text = POD.replace("{name: a}", "{name: a, uid: u}").replace("limits", "requests")
    assert len(scenario(text).pods) == 1
