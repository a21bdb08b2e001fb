"""The variables of a container: exact for its share, and never over the pod's own."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.isolation.variables import CONTEXT_MIB, Enforcement, own_variables
from gpushare.cards.model import Card
from gpushare.contract import ENV_FRAMEWORKS
from gpushare.objects.model import Container, EnvVar
from gpushare.objects.pod_reader import MOST_ENV_BYTES, read_pod
from gpushare.objects.scheduling import Present

SMALL, LARGE = (
    Card(0, "GPU-0", 15, memory_mib=16_276),
    Card(1, "GPU-1", 79, memory_mib=81_559),
)
FRAMEWORKS = Enforcement(why_not_promised="the driver cannot", by_frameworks=True)
OF_EVERY_CONTAINER = {
    "ALIYUN_COM_GPU_MEM_ENFORCED",
    "ALIYUN_COM_GPU_MEM_ALLOCATABLE",
    "ALIYUN_COM_GPU_MEM_FRACTION",
}


def fraction(found: dict[str, str]) -> float:
    name, _, text = found["PYTORCH_ALLOC_CONF"].partition(":")
    assert name == "per_process_memory_fraction"
    assert found["XLA_PYTHON_CLIENT_MEM_FRACTION"] == found["ALIYUN_COM_GPU_MEM_FRACTION"] == text
    assert re.fullmatch(r"0\.\d{4}|1\.0000", text)
    return float(text)


def test_frameworks_are_told_the_part_of_the_gpu_that_is_left_beside_cudas_context():
    found = FRAMEWORKS.variables([LARGE], 8192, (), {})
    assert fraction(found) == pytest.approx((8192 - CONTEXT_MIB) / 81_559, abs=1e-4)
    assert found["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    assert found["ALIYUN_COM_GPU_MEM_ENFORCED"] == "framework"


@given(st.integers(1, 81_559), st.sampled_from([[SMALL], [LARGE], [SMALL, LARGE]]))
def test_no_framework_may_use_more_than_the_share_of_any_gpu(share_mib, cards):
    share_mib = min(share_mib, *(card.memory_mib for card in cards))
    found = FRAMEWORKS.variables(cards, share_mib, (), {})
    allocatable = int(found["ALIYUN_COM_GPU_MEM_ALLOCATABLE"])
    assert 0 <= allocatable < share_mib
    if allocatable:
        assert all(fraction(found) * card.memory_mib <= allocatable for card in cards)
    else:
        assert set(found) == OF_EVERY_CONTAINER


def test_a_limited_container_sees_its_limit_as_the_whole_gpu_and_its_framework_is_told_nothing():
    found = Enforcement(is_limited=True, by_frameworks=True).variables([LARGE], 8192, (), {})
    assert found == {
        "NVIDIA_GPU_MEMORY_REQUEST": "0",
        "NVIDIA_GPU_MEMORY_LIMIT": "8192",
        "ALIYUN_COM_GPU_MEM_ENFORCED": "driver",
        "ALIYUN_COM_GPU_MEM_ALLOCATABLE": "7680",
        "ALIYUN_COM_GPU_MEM_FRACTION": "0.9375",
    }


@pytest.mark.parametrize(
    ("own", "left"),
    [
        ("PYTORCH_ALLOC_CONF", {"XLA_PYTHON_CLIENT_MEM_FRACTION", "TF_FORCE_GPU_ALLOW_GROWTH"}),
        (
            "PYTORCH_CUDA_ALLOC_CONF",
            {"XLA_PYTHON_CLIENT_MEM_FRACTION", "TF_FORCE_GPU_ALLOW_GROWTH"},
        ),
        ("XLA_PYTHON_CLIENT_MEM_FRACTION", {"PYTORCH_ALLOC_CONF", "TF_FORCE_GPU_ALLOW_GROWTH"}),
        ("XLA_CLIENT_MEM_FRACTION", {"PYTORCH_ALLOC_CONF", "TF_FORCE_GPU_ALLOW_GROWTH"}),
    ],
)
def test_a_variable_of_the_pods_own_is_left_alone_and_what_it_undoes_is_not_promised(own, left):
    container = Container("main", env=(EnvVar("PATH", "x"), EnvVar(own, "y")))
    found = FRAMEWORKS.variables([LARGE], 8192, own_variables(container), {})
    assert {name for name in found if not name.startswith("ALIYUN")} == left
    assert found["ALIYUN_COM_GPU_MEM_ENFORCED"] == "nothing"


def test_a_container_whose_variables_come_from_elsewhere_is_left_alone():
    container = Container("main", env_from=(Present(),))
    found = FRAMEWORKS.variables([LARGE], 8192, own_variables(container), {})
    assert set(found) == OF_EVERY_CONTAINER


def test_what_the_kubelet_repeats_holds_and_ends_the_promise_if_it_is_less():
    limited = Enforcement(is_limited=True)
    found = limited.variables([LARGE], 8192, (), {"NVIDIA_GPU_MEMORY_LIMIT": "8192"})
    assert found["ALIYUN_COM_GPU_MEM_ENFORCED"] == "driver"
    more = {"NVIDIA_GPU_MEMORY_LIMIT": "9000"}
    found = limited.variables([LARGE], 8192, (), more, is_served=False)
    assert found["NVIDIA_GPU_MEMORY_LIMIT"] == "9000"
    assert found["ALIYUN_COM_GPU_MEM_ENFORCED"] == "nothing"


def read(filler: int, **container: object) -> Container:
    """The container as the plugin reads it, of a pod with so many bytes of other variables."""
    other = {"name": "other", "env": [{"name": "X", "value": "x" * filler}]}
    body = {
        "metadata": {"name": "a"},
        "spec": {"containers": [{"name": "main", **container}, other]},
    }
    return read_pod(json.dumps(body).encode()).containers[0]


@pytest.mark.parametrize("filler", [0, 2 * MOST_ENV_BYTES])
@pytest.mark.parametrize(
    ("container", "own"),
    [
        ({}, set()),
        ({"env": [{"name": "PATH", "value": "TF"}]}, set()),
        ({"env": [{"name": "PYTORCH_CUDA_ALLOC_CONF", "value": ""}]}, {"PYTORCH_CUDA_ALLOC_CONF"}),
        (
            {"env": [{"name": "XLA_CLIENT_MEM_FRACTION", "valueFrom": {}}]},
            {"XLA_CLIENT_MEM_FRACTION"},
        ),
        ({"envFrom": []}, set()),
        ({"envFrom": [{"configMapRef": {"name": "x"}}]}, set(ENV_FRAMEWORKS)),
    ],
)
def test_the_variables_of_a_pod_are_seen_in_an_environment_of_any_size(container, own, filler):
    assert own_variables(read(filler, **container)) == own
