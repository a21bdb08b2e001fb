"""Which pod a manifest would make, and how many of it."""

from itertools import pairwise

import pytest
import yaml

from gpushare.errors import SettingsError
from gpusharectl.manifests.manifest import manifest

CONTAINERS = [{"name": "main"}]
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": CONTAINERS}}


@pytest.mark.parametrize(
    ("kind", "spec", "count"),
    [
        ("Pod", {"containers": CONTAINERS}, 1),
        ("Deployment", {"replicas": 4, "template": TEMPLATE}, 4),
        ("StatefulSet", {"template": TEMPLATE}, 1),
        ("Job", {"parallelism": 3, "template": TEMPLATE}, 3),
        ("CronJob", {"jobTemplate": {"spec": {"parallelism": 2, "template": TEMPLATE}}}, 2),
    ],
)
def test_every_workload_is_asked_about_by_its_pods(kind, spec, count):
    text = yaml.safe_dump({"kind": kind, "metadata": {"name": "x"}, "spec": spec})
    found = manifest(text.encode(), "x.yaml").only()
    assert found.count == count
    assert found.pod["kind"] == "Pod"
    assert found.pod["metadata"]["name"] == "x"
    assert found.pod["spec"]["containers"] == CONTAINERS


def test_a_workload_of_no_pods_now_is_asked_about_by_one():
    job = {"name": "w", "template": {"spec": {"parallelism": 0, "template": TEMPLATE}}}
    job_set = {"kind": "JobSet", "metadata": {"name": "x"}, "spec": {"replicatedJobs": [job]}}
    assert manifest(yaml.safe_dump(job_set).encode(), "x.yaml").only().count == 1


def test_documents_that_make_no_pods_are_left_out_and_named():
    pod = "{kind: Pod, metadata: {name: x}}"
    found = manifest(
        f"---\n{pod}\n---\n{{kind: Service, metadata: {{name: s}}}}\n---\n".encode(), "x.yaml"
    )
    assert found.skipped == ("Service s",)
    assert manifest(f"{{kind: List, items: [{pod}]}}".encode(), "x.yaml").only().what == "Pod x"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "invalid YAML"),
        ("", "has no Pod"),
        ("just words", "expected a Kubernetes object"),
        ("{kind: Service}", "has no Pod"),
        (
            "{kind: Pod, metadata: {name: a}}\n---\n{kind: Job, spec: {template: {spec: {}}}}",
            "Pod a, Job",
        ),
        (
            "{kind: Deployment, metadata: {name: d}}",
            "Deployment d: is missing: expected the pods' template",
        ),
        (
            "{kind: Deployment, spec: {replicas: many, template: {}}}",
            "replicas: Deployment .*'many'",
        ),
        (
            "{kind: Job, spec: {template: {metadata: {labels: 5}, spec: {containers: []}}}}",
            "spec.template.metadata.labels: Job .*expected a mapping, found 5",
        ),
        (
            (
                "{kind: SparkApplication, metadata: {name: s}, spec: {a: {containers: "
                "[{resources: {limits: {aliyun.com/gpu-mem: 1}}}]}}}"
            ),
            (
                "SparkApplication s: its pods request GPU memory, and gpushare does not read this "
                "kind. Write its pods as a Job"
            ),
        ),
    ],
)
def test_what_cannot_be_asked_about_is_refused_with_a_reason(text, says):
    with pytest.raises(SettingsError, match=says):
        manifest(text.encode(), "x.yaml").only()


_BOMB = "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in pairwise("abcdefghi")
)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("[" * 3000 + "]" * 3000, "nested too deep"),
        ("&a {containers: [*a]}", "contains itself"),
        (f"1\na: &a [x]\n{_BOMB}", "aliases expand to more than"),
        ("{priority: 1" + ":59" * 60_000 + "}", "a number of 180001 characters"),
        ('{priority: !!bool "maybe"}', "invalid YAML"),
        ('{priority: !!timestamp "never"}', "invalid YAML"),
        ('{priority: !!int ""}', "invalid YAML"),
        ("{priority: " + "9" * 5000 + "}", "invalid YAML"),
        (r'{nodeName: "\ud800"}', "x.yaml:2"),
    ],
)
def test_a_manifest_that_is_made_to_harm_is_refused_as_any_other(spec, says):
    with pytest.raises(SettingsError, match=says):
        manifest(f"kind: Pod\nspec: {spec}\n".encode(), "x.yaml")


def test_what_looks_like_a_date_is_text():
    assert (
        manifest(b"{kind: Pod, metadata: {name: 2026-13-45}}", "x.yaml").only().what
        == "Pod 2026-13-45"
    )
