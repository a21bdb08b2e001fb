"""A pod that sets a variable of NVIDIA's itself is kept from nodes where that would win."""

import json

import msgspec
import pytest

from gpushare.contract import RESOURCE_MEMORY
from gpushare.errors import NoRoom
from gpushare.objects.model import Pod
from gpushare.objects.pod_reader import MOST_ENV_BYTES, read_pod
from gpushare.placement.reasons import SETS_CARDS, SETS_LIMITS
from tests.builders import legacy_node, node
from tests.unit.extender.scripted import Bench, restocked


def pod(*variables: str, init: bool = False, asks: bool = True) -> Pod:
    """A pod as kube-scheduler sends it; one of its containers has these variables."""
    limits = {RESOURCE_MEMORY: "4"}
    env = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": "x"}}} for name in variables]
    own = {"name": "own", "env": env, "resources": {"limits": limits if asks else {}}}
    other = {"name": "other", "resources": {"limits": limits}, "env": None}
    spec = {
        "containers": [other] if init else [other, own],
        "initContainers": [own] if init else None,
    }
    meta = {"name": "p", "namespace": "default", "uid": "uid-p"}
    return msgspec.json.decode(json.dumps({"metadata": meta, "spec": spec}), type=Pod)


@pytest.fixture
def bench() -> Bench:
    made = Bench(16)  # node n binds late
    made.cluster.node_changed(restocked(node("early", 16), binding="early"))
    made.cluster.node_changed(legacy_node("older", "16", "1"))
    return made


def fitting(bench: Bench, wanted: Pod) -> tuple[list[str], dict[str, str]]:
    found = bench.cluster.scheduling.filter(wanted, ["n", "early", "older"])
    assert not found.failed
    return found.fitting, found.final


@pytest.mark.parametrize("init", [False, True])
def test_it_waits_with_a_reason_where_binding_is_early_and_fits_elsewhere(bench, init) -> None:
    fits, final = fitting(bench, pod("PATH", "NVIDIA_VISIBLE_DEVICES", init=init))
    assert fits == ["n", "older"]
    assert final == {"early": SETS_CARDS.text}


@pytest.mark.parametrize(
    "wanted",
    [pod(), pod("PATH", "NVIDIA_DRIVER_CAPABILITIES"), pod("NVIDIA_VISIBLE_DEVICES", asks=False)],
    ids=["no variable", "others", "of a container that asks for nothing"],
)
def test_no_other_pod_is_kept_away(bench, wanted) -> None:
    assert fitting(bench, wanted) == (["n", "early", "older"], {})


async def test_bind_refuses_it_too_and_holds_nothing(bench) -> None:
    wanted = pod("NVIDIA_VISIBLE_DEVICES")
    bench.add(wanted)
    with pytest.raises(NoRoom, match="sets NVIDIA_VISIBLE_DEVICES itself"):
        await bench.bind(wanted, node="early")
    assert not bench.kube.bindings
    assert not list(bench.cluster.ledger.reserves())
    await bench.bind(wanted)


def test_a_node_that_binds_late_from_now_on_takes_it(bench) -> None:
    bench.cluster.node_changed(node("early", 16))
    assert fitting(bench, pod("NVIDIA_VISIBLE_DEVICES"))[0] == ["n", "early", "older"]


@pytest.mark.parametrize("init", [False, True])
@pytest.mark.parametrize("name", ["NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT"])
def test_a_pod_with_a_memory_limit_of_its_own_fits_nowhere(bench, name, init) -> None:
    found = bench.cluster.scheduling.filter(pod("PATH", name, init=init), ["n", "early", "older"])
    assert found.fitting == []
    assert found.final == dict.fromkeys(["n", "early", "older"], SETS_LIMITS.text)


def test_a_memory_limit_in_a_container_without_gpu_memory_is_nobodys_matter(bench) -> None:
    wanted = pod("NVIDIA_GPU_MEMORY_LIMIT", asks=False)
    assert fitting(bench, wanted) == (["n", "early", "older"], {})


@pytest.mark.parametrize("filler", [0, MOST_ENV_BYTES])
@pytest.mark.parametrize("name", ["NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_VISIBLE_DEVICES"])
def test_the_variable_is_seen_in_an_environment_of_any_size(bench, filler, name) -> None:
    wanted = msgspec.json.encode(pod("A" * filler, name))
    found = bench.cluster.scheduling.filter(read_pod(wanted), ["early"])
    assert found.final.keys() == {"early"}
