"""Kinds of pods have the names of their workloads."""

import pytest
from msgspec.structs import replace

from gpushare.objects.model import OwnerReference
from gpusharectl.policies.kinds import kinds_of, shown, workload_of
from gpusharectl.policies.table import named
from tests.builders import pod


def owned(name, kind, owner, **labels):
    made = pod(name, labels={key.replace("_", "-"): value for key, value in labels.items()})
    reference = OwnerReference(True, kind, owner, "u")
    return replace(made, metadata=replace(made.metadata, owner_references=(reference,)))


def sized(name, units, cards=1):
    return pod(name, units, labels={"aliyun.com/gpu-count": str(cards)})


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (owned("w-7d9f-x2x", "ReplicaSet", "w-7d9f", pod_template_hash="7d9f"), "w"),
        (owned("w-x2x", "ReplicaSet", "w-abc"), "w-abc"),
        (owned("etl-28391840-x2x", "Job", "etl-28391840"), "etl"),
        (owned("train-2-x2x", "Job", "train-2"), "train-2"),
        (owned("db-0", "StatefulSet", "db"), "db"),
        (pod("vllm-12"), "vllm"),
        (pod("notebook"), "notebook"),
    ],
)
def test_a_kind_is_named_after_what_a_user_created(made, name):
    assert workload_of(made) == name


def test_the_commonest_kinds_the_largest_and_the_smallest_are_named():
    pods = [sized(f"{name}-{n}", units) for units, name in enumerate("abcde", 1) for n in range(9)]
    pods += [sized("big", 64, 8), *(sized(f"b-{n}", 3) for n in range(10, 13))]
    pods += [sized("d-9", 4), sized("wrong", 0)]
    found = [(named(each, 1024), each.pods) for each in shown(kinds_of(pods))]
    assert found == [
        ("c and 1 other (3 GiB)", 12),
        ("d (4 GiB)", 10),
        ("e (5 GiB)", 9),
        ("big (8 GPUs of 8 GiB)", 1),
        ("a (1 GiB)", 9),
    ]


def test_without_pods_there_are_no_kinds():
    assert shown(kinds_of([])) == ()
