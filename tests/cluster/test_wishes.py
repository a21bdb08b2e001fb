"""Containers get what users ask of cards and nodes, and operators of cards."""

from collections.abc import Callable, Iterator

import pytest

from localcluster.gpushare import Gpushare
from localcluster.wait import wait_until
from localcluster.workloads import HOSTNAME, Workloads, pod
from tests.cluster.expect import env_is_card_on_record, sums_are_right

pytestmark = pytest.mark.cluster

KEY = "gpushare.aliyun.com/"
CORDONED = f"{KEY}cordoned-cards"


def wishes(**wanted: str) -> dict[str, dict[str, str]]:
    return {"annotations": {KEY + key.replace("_", "-"): value for key, value in wanted.items()}}


def condition(pods: Workloads, name: str, text: str) -> None:
    """Wait until kube-scheduler has written ``text`` into the pod's own condition."""

    def missing() -> str | None:
        found = pods.get(name)["status"].get("conditions", [])
        messages = [each.get("message", "") for each in found if each["type"] == "PodScheduled"]
        return None if any(text in each for each in messages) else str(messages)

    wait_until(f"{text!r} in the condition of {name}", missing, seconds=60)


@pytest.fixture
def cordon(gpushare: Gpushare) -> Iterator[Callable[[str, str], None]]:
    """Give a function that cordons cards and waits for the extender; undo it afterwards."""
    touched = set()

    def write(node: str, text: str) -> None:
        touched.add(node)
        gpushare.cluster.kubectl("annotate", "--overwrite", "node", node, f"{CORDONED}={text}")
        uuids = set(text.split(","))

        def unknown() -> str | None:
            [found] = gpushare.inspect(node)
            marked = {card["uuid"] for card in found["devs"] if card["cordoned"]}
            return None if marked == uuids or found["problem"] else str(found)

        wait_until(f"{text} cordoned", unknown, seconds=60)

    yield write
    for node in touched:
        gpushare.cluster.kubectl("annotate", "node", node, f"{CORDONED}-")


def test_wishes_for_cards_are_what_the_containers_get(gpushare: Gpushare, pods: Workloads):
    """On n1, which binds late; n4 binds early."""
    spread = {"labels": {"aliyun.com/gpu-count": "2"}}
    pods.run(
        pod("first", 100, node="n1"),
        pod("only", 100, node="n1", metadata=wishes(card_uuids_only="GPU-n1-1,,GPU-n1-7")),
        pod("never", 100, node="n4", metadata=wishes(card_uuids_not="GPU-n4-0,GPU-n4-1")),
        pod("two", 200, node="n4", metadata={**wishes(card_uuids_not="GPU-n4-1"), **spread}),
    )
    pods.run(pod("alone", 100, node="n4", metadata=wishes(card_policy="spread")))
    assert env_is_card_on_record(pods, "first", "only", "never", "alone", "two") == {
        "first": "GPU-n1-0",
        "only": "GPU-n1-1",
        "never": "GPU-n4-2",
        "alone": "GPU-n4-1",
        "two": pods.annotations("two")[f"{KEY}cards"],
    }
    assert len(pods.environment("two")["NVIDIA_VISIBLE_DEVICES"].split(",")) == 2
    assert "GPU-n4-1" not in pods.environment("two")["NVIDIA_VISIBLE_DEVICES"]
    sums_are_right(gpushare, pods)


def test_the_node_policy_of_a_pod_chooses_its_node(gpushare: Gpushare, pods: Workloads):
    pods.run(pod("there", 8000, node="n2"))
    pods.run(pod("joins", 100), pod("keeps-away", 100, metadata=wishes(node_policy="spread")))
    assert gpushare.card_of("joins") == ("n2", 0)
    assert gpushare.card_of("keeps-away") == ("n4", 0)  # the largest of the empty ones
    pods.run(pod("priced", 4000, metadata=wishes(node_policy="prices")))  # where others fit well
    env_is_card_on_record(pods, "priced")
    sums_are_right(gpushare, pods)


def test_a_preferred_node_outranks_the_best_packed_one(gpushare: Gpushare, pods: Workloads):
    term = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": ["n3"]}]}
    prefers = {"weight": 1, "preference": term}
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [prefers]}}
    pods.run(pod("there", 8000, node="n2"))
    pods.run(pod("joins", 100), pod("prefers", 100, affinity=affinity))
    assert gpushare.card_of("joins") == ("n2", 0)
    assert gpushare.card_of("prefers") == ("n3", 0)


def test_a_pod_says_which_of_its_annotations_is_wrong(pods: Workloads):
    pods.create(
        pod("odd", 100, metadata=wishes(card_policy="tight")),
        pod("stranger", 100, metadata=wishes(card_uuids_only="GPU-elsewhere")),
        pod("model", 100, metadata=wishes(card_models="A10")),
    )
    condition(pods, "odd", f"annotation {KEY}card-policy is 'tight': write binpack or spread")
    condition(pods, "stranger", f"{KEY}card-uuids-only and card-uuids-not leave too few GPUs")
    condition(pods, "model", f"of a model in {KEY}card-models")


def test_a_cordoned_card_only_keeps_its_pods(
    gpushare: Gpushare, pods: Workloads, cordon: Callable[[str, str], None]
):
    pods.run(pod("before", 100, node="n3"))
    cordon("n3", "GPU-n3-0")
    pods.run(pod("after", 100, node="n3"))
    found = env_is_card_on_record(pods, "before", "after")
    assert found == {"before": "GPU-n3-0", "after": "GPU-n3-1"}
    cordon("n3", "GPU-n3-0,GPU-n3-1")
    pods.create(pod("waits", 100, node="n3"))
    condition(pods, "waits", "GPUs that would be large enough are cordoned")
    cordon("n3", "GPU-n3-1")
    # kube-scheduler looks again when the node changes, which may be before the extender's watch
    # shows the change. Here nothing else happens to the cluster until it looks for the last time.
    gpushare.cluster.kubectl("annotate", "pod", "waits", "test/look=again")
    pods.wait_running("waits", seconds=60)
    assert env_is_card_on_record(pods, "before", "waits")["waits"] == "GPU-n3-0"
    cordon("n3", "GPU-n3-l")
    pods.create(pod("slip", 100, node="n3"))
    condition(pods, "slip", "cordoned-cards cannot be read")
    sums_are_right(gpushare, pods)
