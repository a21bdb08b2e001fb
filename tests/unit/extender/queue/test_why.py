"""What explain says of pods that wait, in situations that people meet."""

from collections.abc import Callable

import pytest

from extender.settings.configuration import QueueSettings
from gpushare.answers.gang_text import GATES_STAY
from gpushare.cards.model import Card, Health
from gpushare.contract import GATE_ADMISSION
from tests.builders import node
from tests.unit.extender.queue.scene import KUEUE, Scene
from tests.unit.extender.scripted import restocked

CASES: list = []
FIRST = "Position 1 of 1 in the queue, for 91s."
SECOND = "Position 2 of 2 in the queue, for 91s."
NEVER = "It has no position in the queue: it cannot start as it is."
GANG = "Its gang has position 1 of 1 in the queue, for 91s."


def case(says: str, place: str, reason: str, about: str = "p"):
    """Register a scene, what explain says there about a pod, and the reason in the queue."""

    def add(made: Callable[[], Scene]) -> Callable[[], Scene]:
        CASES.append(pytest.param(made, about, says, place, reason, id=made.__name__))
        return made

    return add


def scene(*, quota: str | None = None, used: int = 0, settings: QueueSettings | None = None):
    made = Scene({"n": (16,)}, settings)
    made.namespace("team", quota)
    made.namespace("other")
    if used:
        made.running("r", used)
    return made


def with_a_t4(made: Scene, units: int) -> Scene:
    """Make the only GPU a T4 of so many units, for which a pod waits."""
    cards = (Card(0, "GPU-0", units, tag="a0", model="T4"),)
    made.cluster.put_node(restocked(node("n", units), cards=cards))
    made.pod("p", 4)
    return made


@case(
    "namespace team uses 6 MiB of its quota of 8 MiB, and the pod requests 4 MiB: it waits until "
    "pods there that use 2 MiB end, or the quota is raised.",
    FIRST,
    "OverQuota",
)
def over_the_quota():
    made = scene(quota="8", used=6)
    made.pod("p", 4)
    return made


@case(
    "the pod requests 12 MiB, and the whole quota of namespace team is 8 MiB: request 8 MiB or "
    "less (`aliyun.com/gpu-mem: 8`), or have the quota raised (`12` in "
    "`gpushare.aliyun.com/quota`).",
    FIRST,
    "OverQuota",
)
def requests_more_than_the_whole_quota():
    made = scene(quota="8")
    made.pod("p", 12)
    return made


@case(
    "namespace team uses 8 MiB of its quota of 9 MiB of T4, and the pod requests 4 MiB: it waits "
    "until pods there that use 3 MiB end, or the quota is raised.",
    FIRST,
    "OverModelQuota",
)
def over_the_quota_of_the_only_model_which_has_no_room_either():
    return with_a_t4(scene(quota="T4=9", used=8), 10)


@case(
    "namespace team has a quota of 0: it waits until the quota is raised.",
    FIRST,
    "OverQuota",
)
def a_quota_of_nothing():
    made = scene(quota="0")
    made.pod("p", 4)
    return made


@case(
    "namespace team uses 6 MiB of its quota of 8 MiB of T4, and the pod requests 4 MiB: it waits "
    "until pods there that use 2 MiB end, or the quota is raised.",
    FIRST,
    "OverModelQuota",
)
def over_the_quota_of_the_only_model():
    return with_a_t4(scene(quota="T4=8", used=6), 16)


@case(
    "the quota of namespace team cannot be read, so its pods wait: gpushare.aliyun.com/quota "
    "is 'much': 'much' is not a whole number from 0 to 2147483647; write units such as 64, or"
    " 64,Tesla T4=16 to limit a model too.",
    FIRST,
    "UnreadableQuota",
)
def the_quota_cannot_be_read():
    made = scene(quota="much")
    made.pod("p", 4)
    return made


@case(
    "namespace team is being deleted: nothing starts there any more.",
    FIRST,
    "NamespaceEnds",
)
def the_namespace_is_being_deleted():
    made = scene()
    made.namespace("team", ends=True)
    made.pod("p", 4)
    return made


@case(
    "requests 8 MiB on one GPU; the most free on one GPU is 4 MiB (n, GPU 0). It fits if it "
    "requests 4 MiB or less (`aliyun.com/gpu-mem: 4`), or when team/r ends.",
    FIRST,
    "NoRoom",
)
def no_room():
    made = scene(used=12)
    made.pod("p", 8)
    return made


@case(
    "requests 32 MiB on one GPU, larger than any GPU (the largest has 16 MiB). It fits if it "
    "requests 16 MiB or less (`aliyun.com/gpu-mem: 16`).",
    NEVER,
    "Invalid",
)
def larger_than_any_gpu():
    made = scene()
    made.pod("p", 32)
    return made


@case(
    "requests 32 MiB on one GPU, larger than any GPU (the largest has 16 MiB). It fits if it "
    "requests 16 MiB or less (`aliyun.com/gpu-mem: 16`).",
    NEVER,
    "Invalid",
)
def larger_than_any_gpu_and_than_the_quota():
    made = scene(quota="8")
    made.pod("p", 32)
    return made


@case(
    "requests 32 MiB on one GPU, larger than any GPU (the largest has 16 MiB). It fits if it "
    "requests 16 MiB or less (`aliyun.com/gpu-mem: 16`).",
    f"{FIRST} An autoscaler may add a node for it.",
    "NoRoom",
)
def larger_than_any_gpu_that_an_autoscaler_has_added_yet():
    made = scene(settings=QueueSettings(autoscaled=True))
    made.pod("p", 32)
    return made


@case(
    "its scheduler volcano does not ask gpushare about it, so it gets no GPU memory: write the "
    "spec.schedulerName of a scheduler that does, or let this one call the extender.",
    NEVER,
    "Invalid",
)
def left_to_a_scheduler_that_does_not_ask():
    made = scene()
    made.pod("p", 4, scheduler="volcano")
    return made


@case(
    "its scheduler volcano does not ask gpushare about it, so it gets no GPU memory: write the "
    "spec.schedulerName of a scheduler that does, or let this one call the extender.",
    NEVER,
    "Invalid",
)
def left_to_a_scheduler_that_does_not_ask_and_without_a_gate():
    made = scene()
    made.pod("p", 4, scheduler="volcano", gates=())
    return made


@case(
    "it is a member of gang g. No room for 2 x 32 MiB together: none fits now; `gpushare explain "
    "pod` shows why. This pod: requests 32 MiB on one GPU, larger than any GPU (the largest has "
    "16 MiB). It fits if it requests 16 MiB or less (`aliyun.com/gpu-mem: 16`).",
    "Its gang has no position in the queue: it cannot start as it is.",
    "Invalid",
    "g-0",
)
def a_gang_of_pods_that_are_larger_than_any_gpu():
    made = scene()
    made.gang("g", 32, 2, 2)
    return made


@case(
    "kube-scheduler ignores it until its scheduling gates are removed: kueue.x-k8s.io/admission. "
    "Kueue removes its gates when it admits the pod: `kubectl describe workloads` says what it "
    "waits for.",
    "It has no position in the queue until the scheduling gates of others are removed.",
    "OtherGate",
)
def a_gate_of_kueue():
    made = scene()
    made.pod("p", 4, gates=(GATE_ADMISSION, KUEUE))
    return made


@case(
    "no node can grant its request: container main requests aliyun.com/gpu-mem: 'many' is not"
    " a Kubernetes quantity: write a whole number of units.",
    "It has no position in the queue: it cannot start as it is.",
    "Invalid",
)
def an_invalid_request():
    made = scene()
    made.pod("p", "many")
    return made


@case(
    "it is a member of gang g. Waiting for 1 of 3 members; 2 exist. If no more pods are to "
    "come, lower the label pod-group.scheduling.sigs.k8s.io/min-available of all its pods.",
    "Its gang has no position in the queue until it has enough members.",
    "WaitingForMembers",
    "g-0",
)
def a_gang_lacks_members():
    made = scene()
    made.gang("g", 4, 2, 3)
    return made


@case(
    "it is a member of gang g. Namespace team uses 4 MiB of its quota of 8 MiB, and the gang "
    "requests 6 MiB: it waits until pods there that use 2 MiB end, or the quota is raised.",
    GANG,
    "OverQuota",
    "g-0",
)
def a_gang_over_the_quota():
    made = scene(quota="8", used=4)
    made.gang("g", 3, 2, 2)
    return made


@case(
    "it is a member of gang g. No room for 2 x 4 MiB together: 1 fits now. It starts when 1 "
    "more fits, or with a minimum of 1.",
    GANG,
    "NoRoom",
    "g-0",
)
def a_gang_without_room():
    made = scene(used=12)
    made.gang("g", 4, 2, 2)
    return made


@case(
    "its GPU memory fits now (n, GPU 0), but an earlier pod or gang has no room, and nothing may "
    "pass it (queue.backfill is false).",
    SECOND,
    "BehindFirst",
)
def nothing_passes_the_first_without_backfill():
    made = scene(used=12, settings=QueueSettings(order="fifo", backfill=False))
    made.pod("first", 8, "other", age=90)
    made.pod("p", 2)
    return made


@case(
    "requests 8 MiB on one GPU; the most free on one GPU is 4 MiB (n, GPU 0). It fits if it "
    "requests 4 MiB or less (`aliyun.com/gpu-mem: 4`), or when team/r ends.",
    SECOND,
    "NoRoom",
)
def behind_a_more_important_pod():
    made = scene(used=12)
    made.pod("first", 8, priority=5)
    made.pod("p", 8)
    return made


@case(
    "requests 8 MiB on one GPU; the most free on one GPU is 4 MiB (n, GPU 0). It fits if it "
    "requests 4 MiB or less (`aliyun.com/gpu-mem: 4`), or when team/r ends.",
    "Position 1 of 1 in the queue, for 91s. GPUs on n have been claimed for it for 0s: it starts "
    "when the pod that uses them has ended.",
    "ClaimsGPUs",
)
def first_for_so_long_that_gpus_are_claimed_for_it():
    made = scene(used=12, settings=QueueSettings(reserve_after_seconds=20))
    made.pod("p", 8)
    return made


@case(
    "its GPU memory fits now (n, GPU 0), but kube-scheduler has not placed it there yet.",
    "It has no position in the queue: it had room and did not use it in time. It is tried again "
    "in 30s.",
    "Resting",
)
def it_did_not_come():
    made = scene()
    made.pod("p", 4, gates=())
    return made


@case(
    f"its GPU memory fits now (n, GPU 0). {GATES_STAY}",
    FIRST,
    "NoRight",
)
def the_extender_may_not_remove_the_gate():
    made = scene()
    made.api.allowed = False
    made.pod("p", 4)
    return made


@case(
    "requests 8 MiB on one GPU; the most free on one GPU is 4 MiB (n, GPU 0). It fits if it "
    "requests 4 MiB or less (`aliyun.com/gpu-mem: 4`), or when team/r ends.",
    "Position 1 of 1 in the queue, for 91s. An autoscaler may add a node for it.",
    "NoRoom",
)
def an_autoscaler_may_help():
    made = scene(used=12, settings=QueueSettings(autoscaled=True))
    made.pod("p", 8)
    return made


@case(
    "it is being deleted and was never bound.",
    "",
    "",
)
def it_ends_before_it_starts():
    made = scene()
    made.pod("p", 4)
    made.cluster.terminate("p")
    return made


@case(
    "the pod requests 8 MiB, and the whole quota of namespace free is 4 MiB: request 4 MiB or "
    "less (`aliyun.com/gpu-mem: 4`), or have the quota raised (`8` in "
    "`gpushare.aliyun.com/quota`).",
    "",
    "",
)
def a_pod_outside_of_queued_namespaces_over_its_quota():
    made = scene()
    made.namespace("free", "4", is_queued=False)
    made.pod("p", 8, "free", gates=())
    return made


@case(
    "it is a member of gang g. It cannot start: a member of the pod's gang has a label pod-"
    "group.scheduling.sigs.k8s.io/min-available that is not a positive integer or too large "
    "for a gang. Write a number from 1 to 1024.",
    "Its gang has no position in the queue: it cannot start as it is.",
    "Invalid",
    "g-0",
)
def a_gang_whose_minimum_cannot_be_read():
    made = scene()
    made.gang("g", 4, 2, "many")
    return made


@case(
    "requests 4 MiB on one GPU; the only GPU that is large enough is unhealthy.",
    FIRST,
    "NoRoom",
)
def all_gpus_are_unhealthy():
    made = scene()
    cards = (Card(0, "GPU-0", 16, Health.UNHEALTHY, tag="a0"),)
    made.cluster.put_node(restocked(node("n", 16), cards=cards))
    made.pod("p", 4)
    return made


@pytest.mark.parametrize(("made", "about", "says", "place", "reason"), CASES)
async def test_explain_says_why_and_where_a_pod_waits(made, about, says, place, reason):
    made = made()
    await made.round()
    await made.go_on()
    found = made.explained(about)
    assert found.says == says
    assert (found.queue.text if found.queue else "") == place
    assert (found.queue.reason if found.queue else "") == reason


async def test_explain_says_that_a_gpu_is_reserved_and_then_that_the_pod_did_not_come_to_it():
    made = scene()
    made.pod("p", 4)
    await made.round()  # the API server does not answer the release
    found = made.explained("p")
    assert found.says == (
        "GPU 0 of n is reserved for it, and gpushare removes its scheduling gate now."
    )
    assert found.queue.text == "It has left the queue."
    await made.go_on()
    await made.round()
    assert made.explained("p").queue.text == (
        "It has no position in the queue: it had room and did not use it in time. It is tried "
        "again in 30s."
    )
