"""Pending pods: cluster, pod, and exactly what people read.

The cases are in the order of causes: what never changes, the pod itself, kube-scheduler's rules,
GPUs that take no pods, room.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gpushare.answers.pending.facts import Pending, without_names
from gpushare.answers.pending.why import why_pending
from gpushare.contract import (
    ANNOTATION_CARD_MODELS,
    ANNOTATION_CARDS,
    ANNOTATION_CARDS_ONLY,
    ANNOTATION_CORDONED_CARDS,
    ANNOTATION_INVENTORY,
    ANNOTATION_ISOLATION,
    LABEL_CARD_COUNT,
    LABEL_TEMPLATE_HASH,
    RESOURCE_MEMORY,
)
from gpushare.ledger.accounts import Reserve
from gpushare.objects.model import (
    Container,
    EnvVar,
    Node,
    OwnerReference,
    Pod,
    PodCondition,
    Resources,
)
from gpushare.objects.scheduling import SchedulingGate, Taint
from gpushare.process.time_slices import run_all
from gpusharectl.reach.listed_cluster import ListedCluster
from tests.builders import annotated, container, enforcing, node, pod

A100 = 81920
GIB = 1024


def replaced(found, part, **fields):
    return msgspec.structs.replace(
        found, **{part: msgspec.structs.replace(getattr(found, part), **fields)}
    )


def on(key: str, units: int, where: str, card: int | None = 0, *, priority=0, **meta) -> Pod:
    """A pod on a GPU; without ``card`` nobody knows on which one."""
    namespace, _, name = key.partition("/")
    cards = {ANNOTATION_CARDS: "gone" if card is None else f"GPU-{card}"}
    made = annotated(pod(name, units, uid=key, node=where), cards, namespace=namespace, **meta)
    return replaced(made, "spec", priority=priority)


def asks(units: int | str, *, gpus: int = 1, priority: int = 0, **more) -> Pod:
    labels = {LABEL_CARD_COUNT: str(gpus)} if gpus > 1 else {}
    made = annotated(pod("train-big", units, labels=labels, **more), {}, namespace="ml")
    return replaced(made, "spec", priority=priority)


def tainted(found: Node, key: str) -> Node:
    return replaced(found, "spec", taints=(Taint(key, "NoSchedule"),))


def labelled(found: Node, **labels: str) -> Node:
    return replaced(found, "metadata", labels=labels)


def cordoned(found: Node, *cards: int) -> Node:
    listed = ",".join(f"GPU-{card}" for card in cards)
    return annotated(found, {ANNOTATION_CORDONED_CARDS: listed})


def of_model(found: Node, model: str) -> Node:
    text = found.annotations[ANNOTATION_INVENTORY]
    inventory = msgspec.json.decode(text)
    for card in inventory["cards"]:
        card["model"] = model
    return annotated(found, {ANNOTATION_INVENTORY: msgspec.json.encode(inventory).decode()})


def early(found: Node) -> Node:
    inventory = msgspec.json.decode(found.annotations[ANNOTATION_INVENTORY])
    inventory["binding"] = "early"
    return annotated(found, {ANNOTATION_INVENTORY: msgspec.json.encode(inventory).decode()})


def allocating(found: Node, **amounts: str) -> Node:
    return replaced(found, "status", allocatable={**found.allocatable, **amounts})


def refused(found: Pod, message: str) -> Pod:
    conditions = (PodCondition("PodScheduled", "False", "Unschedulable", message),)
    return replaced(found, "status", conditions=conditions)


def of_deployment(found: Pod, name: str, template: str) -> Pod:
    owner = OwnerReference(True, "ReplicaSet", f"{name}-{template}", f"uid-{template}")
    labels = {**found.labels, LABEL_TEMPLATE_HASH: template}
    return replaced(found, "metadata", owner_references=(owner,), labels=labels)


GATED = replaced(asks(30000), "spec", scheduling_gates=(SchedulingGate("kueue.x-k8s.io/queue"),))
LIMITS = {RESOURCE_MEMORY: "30000"}
SETS_CARDS = Container(
    "main", Resources(LIMITS, LIMITS), env=(EnvVar("NVIDIA_VISIBLE_DEVICES", "all"),)
)
WITHOUT_GPU = replaced(
    on("web", 0, "gke-7"), "spec", containers=(Container("main", Resources({"cpu": "58"})),)
)
USES_CPU = Container("main", Resources({**LIMITS, "cpu": "8"}, {**LIMITS, "cpu": "8"}))


@dataclass
class Case:
    promise: str
    nodes: Sequence[Node]
    pods: Sequence[Pod]
    asks: Pod
    says: str
    reserves: Sequence[Reserve] = ()
    only: str | None = None

    def found(self) -> Pending:
        cluster = ListedCluster(self.nodes, [*self.pods, self.asks])
        for each in self.reserves:
            cluster.ledger.reserve(each)
        found = run_all(why_pending(cluster, self.asks))
        return found if self.only is None else without_names(found, self.only)


HALVES = [on(f"serving/llama-{card}", 40960, "gke-7", card) for card in range(8)]
EIGHT = node("gke-7", *[A100] * 8)
HALF_USED = on("serving/llama-2", 40960, "gke-7")

CASES = [
    Case(
        "an amount that cannot be read",
        [EIGHT],
        [],
        asks("1.5"),
        "no node can grant its request: container main requests aliyun.com/gpu-mem: 1.5 is not a "
        "whole number of units: units cannot be divided.",
    ),
    Case(
        "no node shares GPUs",
        [],
        [],
        asks(8192),
        "no node shares GPUs; in a cluster, `gpushare doctor` shows why.",
    ),
    Case(
        "larger than any GPU",
        [node("gke-7", A100)],
        [HALF_USED],
        asks(120000),
        "requests 117.2 GiB on one GPU, larger than any GPU (the largest has 80 GiB). It fits if "
        "it requests 40 GiB or less (`aliyun.com/gpu-mem: 40960`).",
    ),
    Case(
        "larger than any GPU, but not than two GPUs of a node",
        [node("gke-7", A100, A100)],
        [],
        asks(120000),
        "requests 117.2 GiB on one GPU, larger than any GPU (the largest has 80 GiB). It fits if "
        "it requests 80 GiB or less (`aliyun.com/gpu-mem: 81920`). Two GPUs of a node are large "
        'enough: set the label `aliyun.com/gpu-count: "2"`.',
    ),
    Case(
        "larger than any GPU that it names, although two are large enough",
        [node("gke-7", A100, A100)],
        [],
        asks(120000, annotations={ANNOTATION_CARDS_ONLY: "GPU-0"}),
        "requests 117.2 GiB on one GPU, larger than any GPU (the largest has 80 GiB). It fits if "
        "it requests 80 GiB or less (`aliyun.com/gpu-mem: 81920`).",
    ),
    Case(
        "two containers are larger than any GPU together",
        [node("gke-7", 40, unit_mib=GIB)],
        [],
        replaced(asks(50), "spec", containers=(container("a", 25), container("b", 25))),
        "requests 50 GiB on one GPU, larger than any GPU (the largest has 40 GiB). It fits if it "
        "requests 40 GiB or less (`aliyun.com/gpu-mem: 40` over its containers).",
    ),
    Case(
        "more GPUs than any node has",
        [node("gke-7", A100, A100)],
        [],
        asks(30000, gpus=3),
        "requests 3 GPUs of one node with 9.8 GiB on each; no node has more than 2 GPUs. Request "
        'at most 2 GPUs (label `aliyun.com/gpu-count: "2"`).',
    ),
    Case(
        "more GPUs of this size than any node has",
        [node("gke-7", A100, 16384)],
        [],
        asks(65536, gpus=2),
        "requests 2 GPUs of one node with 32 GiB on each; no node has 2 GPUs that large. It fits "
        "if it requests 16 GiB or less on each (`aliyun.com/gpu-mem: 32768`).",
    ),
    Case(
        "more GPUs of this size than any node has, and nothing is free",
        [node("gke-7", A100, 16384)],
        [on("a/full-0", A100, "gke-7"), on("a/full-1", 16384, "gke-7", 1)],
        asks(65536, gpus=2),
        "requests 2 GPUs of one node with 32 GiB on each; no node has 2 GPUs that large. Request "
        "less on each, or fewer GPUs.",
    ),
    Case(
        "the pod sets something impossible",
        [early(node("gke-7", A100))],
        [],
        replaced(asks(30000), "spec", containers=(SETS_CARDS,)),
        "cannot run on any node with shared GPUs: pod sets NVIDIA_VISIBLE_DEVICES itself, "
        "which early binding on the node cannot overrule.",
    ),
    Case(
        "an inventory that cannot be read",
        [annotated(EIGHT, {ANNOTATION_INVENTORY: "{"})],
        [],
        asks(30000),
        "cannot run on any node with shared GPUs: node's GPU inventory cannot be read.",
    ),
    Case(
        "no GPU of the model",
        [of_model(node("gke-7", A100), "NVIDIA A100")],
        [],
        asks(30000, annotations={ANNOTATION_CARD_MODELS: "NVIDIA A10"}),
        "no node has a GPU of a model that it accepts (NVIDIA A10).",
    ),
    Case(
        "larger than any GPU of the model",
        [of_model(node("gke-7", A100), "NVIDIA A100"), of_model(node("t", 15360), "Tesla T4")],
        [],
        asks(30000, annotations={ANNOTATION_CARD_MODELS: "Tesla T4"}),
        "requests 29.3 GiB on one GPU, larger than any GPU of a model that it accepts (Tesla T4: "
        "the largest has 15 GiB). It fits if it requests 15 GiB or less (`aliyun.com/gpu-mem: "
        "15360`).",
    ),
    Case(
        "no driver limits memory",
        [
            enforcing(node("gke-7", A100), "framework", "driver 580.95 cannot limit memory"),
            enforcing(node("gke-8", A100), "nothing", "--memory-limit=off is set"),
            enforcing(node("gke-9", A100), "nothing", "--memory-limit=off is set"),
        ],
        [],
        asks(30000, annotations={ANNOTATION_ISOLATION: "required"}),
        "requests 29.3 GiB on one GPU that the driver limits (gpushare.aliyun.com/isolation); no "
        "node limits memory on a GPU that large: --memory-limit=off is set, driver 580.95 cannot "
        "limit memory.",
    ),
    Case(
        "the GPUs on which the driver limits memory are too small",
        [node("gke-7", A100), enforcing(node("t", 15360), "driver")],
        [],
        asks(30000, annotations={ANNOTATION_ISOLATION: "required"}),
        "requests 29.3 GiB on one GPU that the driver limits (gpushare.aliyun.com/isolation); no "
        "node limits memory on a GPU that large: no inventory states it. It fits if it requests "
        "15 GiB or less (`aliyun.com/gpu-mem: 15360`).",
    ),
    Case(
        "its own annotations leave no GPU",
        [node("gke-7", A100)],
        [],
        asks(30000, annotations={ANNOTATION_CARDS_ONLY: "GPU-9"}),
        "requests 29.3 GiB on one GPU; its annotations card-uuids-only and card-uuids-not leave "
        "too few GPUs that are large enough.",
    ),
    Case(
        "it is being deleted",
        [EIGHT],
        [],
        annotated(asks(30000), {}, deletion_timestamp="2026-01-01T00:00:00Z"),
        "it is being deleted and was never bound.",
    ),
    Case(
        "it has a scheduling gate",
        [EIGHT],
        [],
        refused(GATED, "Scheduling is blocked due to non-empty scheduling gates"),
        "kube-scheduler ignores it until its scheduling gates are removed: kueue.x-k8s.io/queue. "
        "Kueue removes its gates when it admits the pod: `kubectl describe workloads` says what it "
        "waits for.",
    ),
    Case(
        "it has a scheduling gate, and is larger than any GPU",
        [node("gke-7", 16384)],
        [],
        refused(GATED, "Scheduling is blocked due to non-empty scheduling gates"),
        "requests 29.3 GiB on one GPU, larger than any GPU (the largest has 16 GiB). It fits if "
        "it requests 16 GiB or less (`aliyun.com/gpu-mem: 16384`). kube-scheduler ignores it "
        "until its scheduling gates are removed: kueue.x-k8s.io/queue. Kueue removes its gates "
        "when it admits the pod: `kubectl describe workloads` says what it waits for.",
    ),
    Case(
        "kube-scheduler excludes every node",
        [tainted(EIGHT, "team-b"), tainted(node("gke-8", A100), "team-b")],
        [],
        asks(30000),
        "requests 29.3 GiB on one GPU; no node with large enough GPUs may take it: taint "
        "team-b:NoSchedule is not tolerated.",
    ),
    Case(
        "kube-scheduler excludes nodes by several rules",
        [tainted(EIGHT, "team-b"), node("gke-8", A100), node("gke-9", 16384)],
        [],
        replaced(asks(30000), "spec", node_selector={"zone": "a"}),
        "requests 29.3 GiB on one GPU; no node with large enough GPUs may take it: node does not "
        "have the labels of nodeSelector (1 node); taint team-b:NoSchedule is not tolerated (1 "
        "node).",
    ),
    Case(
        "all GPUs are cordoned",
        [cordoned(node("gke-7", A100, A100), 0, 1)],
        [],
        asks(30000),
        "requests 29.3 GiB on one GPU; the 2 GPUs that are large enough are cordoned.",
    ),
    Case(
        "one large GPU is cordoned, the other unhealthy",
        [cordoned(node("gke-7", A100, A100, 16384, unhealthy=[1]), 0)],
        [],
        asks(30000),
        "requests 29.3 GiB on one GPU; no GPU that is large enough takes new pods (1 cordoned and "
        "1 unhealthy). It fits if it requests 16 GiB or less (`aliyun.com/gpu-mem: 16384`).",
    ),
    Case(
        "the only GPU is unhealthy",
        [node("gke-7", A100, unhealthy=[0])],
        [],
        asks(30000),
        "requests 29.3 GiB on one GPU; the only GPU that is large enough is unhealthy.",
    ),
    Case(
        "one of the two GPUs that it wants is cordoned",
        [cordoned(node("gke-7", A100, A100), 0)],
        [],
        asks(60000, gpus=2),
        "requests 2 GPUs of one node with 29.3 GiB on each; no node has 2 GPUs that are large "
        "enough and take new pods (1 cordoned).",
    ),
    Case(
        "its only GPU is cordoned, and another node is excluded",
        [cordoned(node("gke-7", A100), 0), tainted(node("gke-8", A100), "team-b")],
        [],
        asks(30000),
        "requests 29.3 GiB on one GPU; no GPU that is large enough and that it may use takes new "
        "pods (1 cordoned); 1 node with room is excluded: taint team-b:NoSchedule is not "
        "tolerated.",
    ),
    Case(
        "fewer GPUs of the model than it wants are large enough",
        [of_model(node("gke-7", A100, 15360), "NVIDIA A100"), node("gke-8", A100, A100)],
        [],
        asks(60000, gpus=2, annotations={ANNOTATION_CARD_MODELS: "NVIDIA A100"}),
        "requests 2 GPUs of one node with 29.3 GiB on each; no node has 2 GPUs that large of a "
        "model that it accepts (NVIDIA A100). It fits if it requests 15 GiB or less on each "
        "(`aliyun.com/gpu-mem: 30720`).",
    ),
    Case(
        "both GPUs are full, and the node with two free ones is excluded",
        [node("gke-7", A100, A100), tainted(node("gke-8", A100, A100), "team-b")],
        [on("a/full-0", A100, "gke-7"), on("a/full-1", A100, "gke-7", 1)],
        asks(2048, gpus=2),
        "requests 2 GPUs of one node with 1 GiB on each; no node has 2 GPUs that it may use with "
        "free memory; 1 node with room is excluded: taint team-b:NoSchedule is not tolerated. It "
        "fits when 2 pods end (a/full-0 and a/full-1).",
    ),
    Case(
        "it fits exactly",
        [EIGHT],
        HALVES,
        asks(40960),
        "its GPU memory fits now (gke-7, GPU 0), but kube-scheduler has not placed it there yet.",
    ),
    Case(
        "it fits, and its scheduler does not run",
        [EIGHT],
        HALVES,
        replaced(asks(40960), "spec", scheduler_name="gpushare-scheduler"),
        "its GPU memory fits now (gke-7, GPU 0), but no scheduler named gpushare-scheduler has "
        "looked at it yet.",
    ),
    Case(
        "it fits, and kube-scheduler gives a reason",
        [EIGHT],
        HALVES,
        refused(
            asks(40960),
            "0/1 nodes are available: 1 node(s) had volume node affinity conflict. preemption: 0/1 "
            "nodes are available: 1 Preemption is not helpful for scheduling.",
        ),
        "its GPU memory fits now (gke-7, GPU 0), but kube-scheduler has not placed it there "
        "yet; it last said: 0/1 nodes are available: 1 node(s) had volume node affinity "
        "conflict.",
    ),
    Case(
        "a pod of the same priority is in the way",
        [node("gke-7", A100)],
        [HALF_USED],
        asks(60000),
        "requests 58.6 GiB on one GPU; the most free on one GPU is 40 GiB (gke-7, GPU 0). It fits "
        "if it requests 40 GiB or less (`aliyun.com/gpu-mem: 40960`), or when serving/llama-2 "
        "ends.",
    ),
    Case(
        "kube-scheduler rejects nodes by a rule that gpushare does not judge",
        [node("gke-7", A100)],
        [HALF_USED],
        refused(
            asks(60000),
            "0/5 nodes are available: 1 Insufficient aliyun.com/gpu-mem, 1 Insufficient cpu, 1 no "
            "single GPU has enough free aliyun.com/gpu-mem, 1 node(s) had untolerated taint {a: b},"
            " 1 node(s) had volume node affinity conflict. no new claims to deallocate, "
            "preemption: 0/5 nodes are available: 5 No preemption victims found for incoming pod.",
        ),
        "requests 58.6 GiB on one GPU; the most free on one GPU is 40 GiB (gke-7, GPU 0). Its GPU "
        "memory fits if it requests 40 GiB or less (`aliyun.com/gpu-mem: 40960`), or when "
        "serving/llama-2 ends. kube-scheduler last said: 1 node(s) had volume node affinity "
        "conflict.",
    ),
    Case(
        "the node with room has too little CPU left",
        [allocating(node("gke-7", A100), cpu="4")],
        [],
        replaced(asks(30000), "spec", containers=(USES_CPU,)),
        "requests 29.3 GiB on one GPU, which 1 node has free, but cannot run there: too little "
        "allocatable cpu is left. Request less of it, or wait until pods there end.",
    ),
    Case(
        "pods without GPU memory leave too little CPU",
        [allocating(node("gke-7", A100), cpu="64")],
        [WITHOUT_GPU],
        replaced(asks(30000), "spec", containers=(USES_CPU,)),
        "requests 29.3 GiB on one GPU, which 1 node has free, but cannot run there: too little "
        "allocatable cpu is left. Request less of it, or wait until pods there end.",
    ),
    Case(
        "any of eight pods is in the way",
        [EIGHT],
        HALVES,
        asks(60000),
        "requests 58.6 GiB on one GPU; the most free on one GPU is 40 GiB (gke-7, GPU 0). It fits "
        "if it requests 40 GiB or less (`aliyun.com/gpu-mem: 40960`), or when one of 8 pods ends, "
        "for example serving/llama-0.",
    ),
    Case(
        "one MiB is missing",
        [node("gke-7", A100)],
        [on("serving/llama-2", 40961, "gke-7")],
        asks(40960),
        "requests 40960 MiB on one GPU; the most free on one GPU is 40959 MiB (gke-7, GPU 0). It "
        "fits if it requests 40959 MiB or less (`aliyun.com/gpu-mem: 40959`), or when "
        "serving/llama-2 ends.",
    ),
    Case(
        "a unit is a GiB",
        [node("gke-7", 80, unit_mib=GIB)],
        [on("serving/llama-2", 40, "gke-7")],
        asks(60),
        "requests 60 GiB on one GPU; the most free on one GPU is 40 GiB (gke-7, GPU 0). It fits "
        "if it requests 40 GiB or less (`aliyun.com/gpu-mem: 40`), or when serving/llama-2 ends.",
    ),
    Case(
        "it wants two GPUs",
        [node("gke-7", A100, A100)],
        [HALF_USED],
        asks(100000, gpus=2),
        "requests 2 GPUs of one node with 48.9 GiB on each; the most free on each of 2 GPUs of "
        "one node is 40 GiB (gke-7, GPUs 0 and 1). It fits if it requests 40 GiB or less on each "
        "(`aliyun.com/gpu-mem: 81920`), or when serving/llama-2 ends.",
    ),
    Case(
        "a pod of lower priority is in the way",
        [node("gke-7", A100)],
        [on("batch/low", 40960, "gke-7")],
        asks(60000, priority=5),
        "requests 58.6 GiB on one GPU; the most free on one GPU is 40 GiB (gke-7, GPU 0). It fits "
        "if it requests 40 GiB or less (`aliyun.com/gpu-mem: 40960`), or when batch/low ends, "
        "which kube-scheduler may evict for it.",
    ),
    Case(
        "a pod of higher priority is in the way",
        [node("gke-7", A100)],
        [on("serving/high", 40960, "gke-7", priority=100)],
        asks(60000, priority=5),
        "requests 58.6 GiB on one GPU; the most free on one GPU is 40 GiB (gke-7, GPU 0). It fits "
        "if it requests 40 GiB or less (`aliyun.com/gpu-mem: 40960`), or when serving/high ends.",
    ),
    Case(
        "the old pod of its own Deployment is in the way, and waits for it",
        [node("gke-7", A100)],
        [of_deployment(on("ml/llama-7c9d-x", 61440, "gke-7"), "llama", "7c9d")],
        of_deployment(asks(61440), "llama", "58f4"),
        "requests 60 GiB on one GPU; the most free on one GPU is 20 GiB (gke-7, GPU 0). It fits "
        "if it requests 20 GiB or less (`aliyun.com/gpu-mem: 20480`), or when ml/llama-7c9d-x "
        "ends. But the update of its Deployment ends the old pod only when this one is Ready: set "
        "strategy.type to Recreate, or rollingUpdate.maxSurge to 0.",
    ),
    Case(
        "another pod of the same ReplicaSet is in the way",
        [node("gke-7", A100)],
        [of_deployment(on("ml/llama-7c9d-x", 61440, "gke-7"), "llama", "7c9d")],
        of_deployment(asks(61440), "llama", "7c9d"),
        "requests 60 GiB on one GPU; the most free on one GPU is 20 GiB (gke-7, GPU 0). It fits "
        "if it requests 20 GiB or less (`aliyun.com/gpu-mem: 20480`), or when ml/llama-7c9d-x "
        "ends.",
    ),
    Case(
        "a pod of another Deployment is in the way",
        [node("gke-7", A100)],
        [of_deployment(on("ml/qwen-7c9d-x", 61440, "gke-7"), "qwen", "7c9d")],
        of_deployment(asks(61440), "llama", "58f4"),
        "requests 60 GiB on one GPU; the most free on one GPU is 20 GiB (gke-7, GPU 0). It fits "
        "if it requests 20 GiB or less (`aliyun.com/gpu-mem: 20480`), or when ml/qwen-7c9d-x ends.",
    ),
    Case(
        "two pods together are in the way",
        [node("gke-7", A100)],
        [on("a/one", 40960, "gke-7"), on("a/two", 40960, "gke-7")],
        asks(81920),
        "requests 80 GiB on one GPU; no GPU has free memory. It fits when 2 pods end (a/one and "
        "a/two).",
    ),
    Case(
        "three pods together are in the way",
        [node("gke-7", A100)],
        [on(f"a/p{i}", 27306, "gke-7") for i in range(3)],
        asks(81920),
        "requests 80 GiB on one GPU; the most free on one GPU is 2 MiB (gke-7, GPU 0). It fits "
        "when 3 pods end (a/p0 and 2 more).",
    ),
    Case(
        "a pod in the way is being deleted",
        [node("gke-7", A100)],
        [on("a/one", 40960, "gke-7", deletion_timestamp="2026-01-01T00:00:00Z")],
        asks(60000),
        "requests 58.6 GiB on one GPU; the most free on one GPU is 40 GiB (gke-7, GPU 0). It fits "
        "if it requests 40 GiB or less (`aliyun.com/gpu-mem: 40960`), or when a/one ends, which "
        "is being deleted.",
    ),
    Case(
        "a pod of another namespace is in the way",
        [node("gke-7", A100)],
        [HALF_USED],
        asks(60000),
        "requests 58.6 GiB on one GPU; the most free on one GPU is 40 GiB (gke-7, GPU 0). It fits "
        "if it requests 40 GiB or less (`aliyun.com/gpu-mem: 40960`), or when a pod in another "
        "namespace ends.",
        only="ml",
    ),
    Case(
        "its owner sees only one of the pods in the way",
        [EIGHT],
        [*HALVES[:7], on("ml/mine", 40960, "gke-7", 7)],
        asks(60000),
        "requests 58.6 GiB on one GPU; the most free on one GPU is 40 GiB (gke-7, GPU 0). It fits "
        "if it requests 40 GiB or less (`aliyun.com/gpu-mem: 40960`), or when one of 8 pods ends, "
        "for example ml/mine.",
        only="ml",
    ),
    Case(
        "its owner sees none of the pods in the way",
        [EIGHT],
        HALVES,
        asks(60000),
        "requests 58.6 GiB on one GPU; the most free on one GPU is 40 GiB (gke-7, GPU 0). It fits "
        "if it requests 40 GiB or less (`aliyun.com/gpu-mem: 40960`), or when one of 8 pods ends.",
        only="ml",
    ),
    Case(
        "memory is reserved for pods that are being bound",
        [node("gke-7", A100)],
        [],
        asks(60000),
        "requests 58.6 GiB on one GPU; the room for it (gke-7, GPU 0) is reserved or claimed for "
        "pods before it. It fits if it requests 50.7 GiB or less (`aliyun.com/gpu-mem: 51920`).",
        reserves=[Reserve("other", "x", "other", "gke-7", ("GPU-0",), 30000, 0)],
    ),
    Case(
        "part of what is free is reserved, and all of it would not be enough",
        [node("gke-7", A100)],
        [on("serving/llama-2", 20480, "gke-7")],
        asks(A100),
        "requests 80 GiB on one GPU; the most free on one GPU is 30.7 GiB (gke-7, GPU 0, where "
        "29.3 GiB are reserved for other pods). It fits if it requests 30.7 GiB or less "
        "(`aliyun.com/gpu-mem: 31440`).",
        reserves=[Reserve("other", "x", "other", "gke-7", ("GPU-0",), 30000, 0)],
    ),
    Case(
        "a pod is on an unknown GPU",
        [node("gke-7", A100, A100)],
        [on("old/unknown", 40960, "gke-7", None)],
        asks(60000),
        "requests 58.6 GiB on one GPU; the most free on one GPU is 40 GiB (gke-7, GPU 0). It fits "
        "if it requests 40 GiB or less (`aliyun.com/gpu-mem: 40960`), or when old/unknown ends.",
    ),
    Case(
        "the node with room is excluded",
        [node("gke-7", A100), tainted(node("gke-8", A100), "team-b")],
        [HALF_USED],
        asks(60000),
        "requests 58.6 GiB on one GPU; the most free on one GPU that it may use is 40 GiB (gke-7, "
        "GPU 0); 1 node with room is excluded: taint team-b:NoSchedule is not tolerated. It fits "
        "if it requests 40 GiB or less (`aliyun.com/gpu-mem: 40960`), or when serving/llama-2 "
        "ends.",
    ),
    Case(
        "nothing is free",
        [node("gke-7", A100)],
        [on("a/full", A100, "gke-7")],
        asks(1024),
        "requests 1 GiB on one GPU; no GPU has free memory. It fits when a/full ends.",
    ),
    Case(
        "kube-scheduler is evicting a pod for it",
        [node("gke-7", A100)],
        [on("batch/low", 40960, "gke-7", deletion_timestamp="2026-01-01T00:00:00Z")],
        replaced(asks(60000, priority=5), "status", nominated_node_name="gke-7"),
        "requests 58.6 GiB on one GPU; the most free on one GPU is 40 GiB (gke-7, GPU 0). It fits "
        "if it requests 40 GiB or less (`aliyun.com/gpu-mem: 40960`), or when batch/low ends, "
        "which is being deleted. kube-scheduler is making room for it on gke-7.",
    ),
]
