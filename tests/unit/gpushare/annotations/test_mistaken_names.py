"""Mistyped names and other products' names are told with what to write."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.annotations.mistaken_names import MOST, annotation_suggestion, hint, suggestions
from gpushare.objects.model import Container, ObjectMeta, Pod, PodSpec, Resources


def pod(limits=None, annotations=None):
    container = Container("main", Resources(limits=limits or {}))
    return Pod(
        ObjectMeta(name="a", annotations=annotations or {}), PodSpec(containers=(container,))
    )


@pytest.mark.parametrize(
    "name",
    [
        "aliyun.com/gpu-memory",
        "aliyun.com/gpumem",
        "aliyun.com/gpu_mem",
        "aliyun.com/GPU-Mem",
        "alyun.com/gpu-mem",
        "nvidia.com/gpu-mem",
        "gpu-mem",
        "gpu-memory",
    ],
)
def test_a_typing_error_is_told_with_the_right_name(name):
    assert suggestions(pod({name: 8})) == (f"{name}: did you mean aliyun.com/gpu-mem?",)


@pytest.mark.parametrize(
    "name",
    [
        "aliyun.com/gpu-mem",
        "aliyun.com/gpu-count",
        "aliyun.com/gpu-core.percentage",
        "cpu",
        "memory",
        "amd.com/gpumem",
        "koordinator.sh/gpu-memory-ratio",
        "x" * 100_000 + "gpu-mem",
    ],
)
def test_right_names_and_those_of_other_devices_are_no_typing_errors(name):
    assert suggestions(pod({name: 8})) == ()


def test_an_amount_of_hami_is_told_in_gib_rounded_up():
    assert suggestions(pod({"nvidia.com/gpu": 1, "nvidia.com/gpumem": "3000"})) == (
        "nvidia.com/gpumem: 3000 is HAMi's, in MiB; here request 3 GiB as aliyun.com/gpu-mem",
    )
    [text] = suggestions(pod({"volcano.sh/vgpu-memory": "8k"}))
    assert text.startswith("volcano.sh/vgpu-memory: 8k is Volcano's")
    assert text.endswith("here request 8 GiB as aliyun.com/gpu-mem")
    [text] = suggestions(pod({"nvidia.com/gpumem": "lots"}))
    assert text == "nvidia.com/gpumem is HAMi's, in MiB; here it is aliyun.com/gpu-mem"


@pytest.mark.parametrize(
    ("count", "memory"),
    [("nvidia.com/gpu", "nvidia.com/gpumem"), ("volcano.sh/vgpu-number", "volcano.sh/vgpu-memory")],
)
def test_an_amount_of_each_of_several_gpus_is_told_in_all(count, memory):
    told = suggestions(pod({count: "2", memory: "8000"}))
    wanted = 'here request 16 GiB as aliyun.com/gpu-mem, with the label aliyun.com/gpu-count: "2"'
    assert any(text.endswith(wanted) for text in told)


def test_an_amount_that_no_gpu_has_is_not_converted():
    assert suggestions(pod({"nvidia.com/gpumem": "8Gi"})) == (
        "nvidia.com/gpumem: 8Gi is HAMi's, in MiB; here it is aliyun.com/gpu-mem",
    )


def test_a_whole_gpu_is_told_apart_from_a_share():
    [text] = suggestions(pod({"nvidia.com/gpu": 1}))
    assert text == (
        "nvidia.com/gpu requests a whole GPU or a replica of one: a share is aliyun.com/gpu-mem"
    )
    assert "MIG" in suggestions(pod({"nvidia.com/mig-1g.5gb": 1}))[0]


def test_a_mistyped_annotation_is_told_with_the_right_one():
    wrong, right = "gpushare.aliyun.com/card-model", "gpushare.aliyun.com/card-models"
    assert suggestions(pod(annotations={wrong: "Tesla T4"})) == (f"{wrong}: did you mean {right}?",)
    for name in (right, "gpushare.aliyun.com/cards", "gpushare.aliyun.com/running-on", "other/x"):
        assert annotation_suggestion(name) == ""


def test_the_hint_ends_a_sentence_or_is_nothing():
    assert hint(pod({"cpu": 1})) == ""
    assert hint(pod({"gpu-mem": 1})) == ". gpu-mem: did you mean aliyun.com/gpu-mem?"


@given(st.dictionaries(st.text(max_size=30), st.text(max_size=5), max_size=100))
def test_any_names_give_few_suggestions(limits):
    assert len(suggestions(pod(limits, dict(limits)))) <= MOST
