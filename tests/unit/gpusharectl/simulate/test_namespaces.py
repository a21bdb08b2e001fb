"""Quotas and the order of the queue hold in a simulation as they do in a cluster."""

import pytest

from gpushare.errors import SettingsError
from gpushare.quota.reasons import OVER_MODEL_QUOTA, OVER_QUOTA
from gpusharectl.manifests.yaml_lines import read
from gpusharectl.simulate.scenario import build
from tests.unit.gpusharectl.simulate.test_command import simulate
from tests.unit.gpusharectl.simulate.test_gangs import last, member
from tests.unit.gpusharectl.simulate.test_run import node_text, pod_text, run, waiting, where


def namespace(name, quota=None, *, at=0, queued=False, uid=""):
    annotations = f'gpushare.aliyun.com/quota: "{quota}"' if quota is not None else ""
    labels = 'gpushare.aliyun.com/queue: "true"' if queued else ""
    return (
        f"kind: Namespace\nmetadata:\n  name: {name}\n  uid: '{uid}'\n  labels: {{{labels}}}\n"
        f"  annotations: {{{annotations}}}\nat: {at}\n"
    )


def of(name, text):
    """The same document in another namespace."""
    return text.replace("metadata: {name", f"metadata: {{namespace: {name}, name", 1)


def test_a_pod_over_its_quota_waits_although_gpus_are_free_until_one_ends():
    texts = [of("ml", pod_text(f"p{n}", 8, at=n, delete=9 if n == 1 else None)) for n in range(4)]
    steps = run(node_text("n", "4 x 16"), namespace("ml", 20), *texts)
    assert (waiting(steps[2]), waiting(steps[3])) == (["p2"], ["p2", "p3"])
    [group] = steps[3].waiting
    assert "uses 16 GiB of its quota of 20 GiB" in group.sentence
    assert (group.reasons, group.nodes) == ({OVER_QUOTA.text: 1}, ())
    assert (sorted(where(steps[4])), waiting(steps[4])) == (["p0", "p2"], ["p3"])
    [used] = steps[4].quotas
    assert (used.namespace, used.used, used.limit) == ("ml", 16, 20)


def test_others_do_not_wait_for_a_namespace_over_its_quota():
    texts = [of("ml", pod_text("mine", 8)), pod_text("other", 8)]
    step = last(node_text("n", "1 x 16"), namespace("ml", 4), *texts)
    assert (sorted(where(step)), waiting(step)) == (["other"], ["mine"])


def test_a_gang_over_its_quota_takes_nothing_and_is_one_row():
    gang = [of("ml", member(f"a-{n}", "a", 3)) for n in range(3)]
    texts = [node_text("n", "4 x 16"), namespace("ml", 20), *gang]
    step = last(*texts)
    assert where(step) == {}
    shown = simulate("-", stdin="---\n".join(texts))
    assert "? Gang ml/a (3 pods) is Pending: The gang requests" in shown
    assert shown.count("and the whole quota of namespace ml") == 1


def test_a_quota_that_is_raised_lets_pods_start():
    texts = [namespace("ml", 0), namespace("ml", 8, at=30), of("ml", pod_text("p", 8))]
    before, after = run(node_text("n", "1 x 16"), *texts)
    assert (waiting(before), sorted(where(after))) == (["p"], ["p"])
    assert [each.what for each in after.happened] == ["namespace", "placed"]
    assert after.happened[0].text == "changes"


def test_a_namespace_that_comes_later_is_added():
    texts = [namespace("ml", 8, at=10), of("ops", pod_text("p", 8)), namespace("ops", 8, at=10)]
    step = run(node_text("n", "1 x 16"), *texts)[-1]
    assert [(each.namespace, each.text) for each in step.happened] == [
        ("ml", "is added"),
        ("ops", "changes"),
    ]


def test_a_quota_for_a_model_leaves_the_other_models():
    nodes = [node_text("a", "1 x 16 A100"), node_text("t", "1 x 16 Tesla T4")]
    texts = [of("ml", pod_text(f"p{n}", 12)) for n in range(2)]
    step = last(*nodes, namespace("ml", "A100=0"), *texts)
    assert ([node for node, _ in where(step).values()], len(waiting(step))) == (["t"], 1)
    assert {each.name: each.why for each in step.waiting[0].nodes}["a"] == OVER_MODEL_QUOTA.text


def test_of_queued_namespaces_the_one_that_uses_the_smaller_part_of_its_quota_comes_first():
    texts = [
        *[namespace(name, 32, queued=True) for name in ("a", "b")],
        of("a", pod_text("a-0", 12)),
        pod_text("rest", 12, delete=9),
        of("a", pod_text("a-1", 12, at=1)),
        of("b", pod_text("b-1", 12, at=2)),
    ]
    step = last(node_text("n", "2 x 16"), *texts)
    assert (sorted(where(step)), waiting(step)) == (["a-0", "b-1"], ["a-1"])
    unlabeled = [text.replace('queue: "true"', 'queue: "no"') for text in texts]
    assert waiting(last(node_text("n", "2 x 16"), *unlabeled)) == ["b-1"]


def test_a_quota_that_is_ignored_is_no_green_exit():
    texts = [node_text("n", "1 x 16"), namespace("ml", 4), of("ml", pod_text("p", 8))]
    assert "1 pod is Pending at the end: ml/p" in simulate(
        "-", "--all-must-run", stdin="---\n".join(texts), code=1
    )


def test_a_quota_that_cannot_be_read_is_an_error_with_its_line():
    with pytest.raises(SettingsError, match=r"f.yaml:6: metadata.annotations.*whole number"):
        build(read("f.yaml", namespace("ml", "abc").encode()))


def test_a_quota_of_a_cluster_that_cannot_be_read_lets_its_pods_wait():
    served = namespace("ml", "abc", uid="1")
    step = last(node_text("n", "1 x 16"), served, of("ml", pod_text("p", 8)))
    assert "the quota of namespace ml cannot be read" in step.waiting[0].sentence


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (namespace("ml", 1) + "---\n" + namespace("ml", 2), "namespace ml is defined twice at 0s"),
        ("kind: Namespace\nmetadata: {name: ml, anotations: {}}\n", "did you mean annotations"),
        ("kind: Namespace\nmetadata: {name: ml, labels: {a: 1}}\n", "in quotes"),
        ("kind: Namespace\nmetadata: {name: Ml}\n", "lower case"),
    ],
)
def test_wrong_namespaces_are_errors(text, said):
    with pytest.raises(SettingsError, match=said):
        build(read("f.yaml", text.encode()))


def test_a_quota_of_a_namespace_without_pods_is_named():
    texts = [node_text("n", "1 x 16"), namespace("lm", 4), of("ml", pod_text("p", 8))]
    assert "Ignored: lm: has a quota, and no pods in the files" in simulate(
        "-", stdin="---\n".join(texts)
    )


def test_a_dump_without_namespaces_says_first_that_quotas_are_not_known():
    served = pod_text("p", 8).replace("name: p,", "name: p, uid: x,")
    stdin = "---\n".join([node_text("n", "1 x 16"), served, namespace("other", 4)])
    shown = simulate("-", stdin=stdin)
    told = "quotas of namespaces that are not in the files (kubectl get"
    assert shown.startswith(f"Not simulated here: {told}")
    assert told in simulate("-", "--all-must-run", stdin=stdin, code=2)
    known = f"{stdin}---\n{namespace('default', 8)}"
    assert "Not simulated here" not in simulate("-", "--all-must-run", stdin=known)


def test_a_resource_quota_of_gpu_memory_is_told_first_and_is_no_green_exit():
    quota = "kind: ResourceQuota\nmetadata: {name: q}\nspec: {hard: {requests.%s: 4}}\n"
    texts = [node_text("n", "1 x 16"), pod_text("p", 8)]
    stdin = "---\n".join([*texts, quota % "aliyun.com/gpu-mem"])
    told = "ResourceQuota q: limits GPU memory at the creation of pods, which is not simulated"
    assert simulate("-", stdin=stdin).startswith(f"Not simulated here: {told}")
    assert told in simulate("-", "--all-must-run", stdin=stdin, code=2)
    simulate("-", "--all-must-run", stdin="---\n".join([*texts, quota % "cpu"]))
