"""All pods of the cluster count on their nodes; those that matter to gpushare are kept in full."""

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from extender.watch.cluster import ClusterWatch, PodHandler
from extender.watch.live_pods import LivePods, PodUse
from gpushare.contract import (
    ANNOTATION_CARDS,
    ANNOTATION_KUEUE_GROUP,
    GATE_ADMISSION,
    LABEL_GANG,
    LABEL_KUEUE_GROUP,
    LABEL_POD_GROUP,
    RESOURCE_COUNT,
    RESOURCE_MEMORY,
)
from gpushare.ledger.holds import Hold, Slot
from gpushare.objects.model import Pod
from gpushare.objects.pod_reader import MOST_AT_ONCE
from tests.builders import node, run_to_end
from tests.fakes.clock import FakeClock
from tests.unit.extender.scripted import changed

read_live_pod = LivePods().read


def body(name="p", where="", *, cpu="1", labels=None, share=False, padding=0, version="7", **parts):
    """Return a pod as JSON; ``parts`` are of its spec, ``phase`` of its status."""
    phase, owner = parts.pop("phase", "Running"), parts.pop("owner", "ReplicaSet")
    notes = {ANNOTATION_CARDS: "GPU-0", **parts.pop("annotations", {})}
    amounts = {"cpu": cpu} | ({RESOURCE_MEMORY: "2"} if share else {})
    found = {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": name,
            "resourceVersion": version,
            "labels": labels or {},
            "annotations": {**notes, "padding": "x" * padding},
            "ownerReferences": [{"apiVersion": "v1", "kind": owner, "name": "o", "uid": "o"}],
        },
        "spec": {
            "nodeName": where,
            "containers": [{"name": "main", "resources": {"limits": amounts}}],
            **parts,
        },
        "status": {"phase": phase},
    }
    return msgspec.Raw(msgspec.json.encode(found))


OURS = {
    "GPU memory": {"share": True},
    "GPU memory that is 0": {
        "containers": [{"resources": {"limits": {RESOURCE_MEMORY: "0"}}}],
    },
    "GPUs": {"containers": [{"resources": {"limits": {RESOURCE_COUNT: "1"}}}]},
    "gang by labels": {"labels": {LABEL_GANG: "g"}},
    "gang by PodGroup": {"labels": {LABEL_POD_GROUP: "g"}},
    "gang of Kueue": {"labels": {LABEL_KUEUE_GROUP: "g"}},
    "gang of Kueue by annotation": {"annotations": {ANNOTATION_KUEUE_GROUP: "g"}},
    "gang of Kubernetes": {"schedulingGroup": {"podGroupName": "g"}},
    "gate": {"schedulingGates": [{"name": "other"}, {"name": GATE_ADMISSION}]},
}
NOT_OURS = {
    "nothing": {},
    "our names in other places": {
        "nodeSelector": {RESOURCE_MEMORY: LABEL_GANG},
        "schedulingGates": [{"name": f"x{GATE_ADMISSION}"}],
    },
    "a resource of others": {
        "containers": [{"resources": {"limits": {f"x{RESOURCE_MEMORY}": "1"}}}],
    },
    "a gang without a name": {"labels": {LABEL_GANG: ""}, "schedulingGroup": {}},
}


@pytest.mark.parametrize("padding", [0, MOST_AT_ONCE])
@pytest.mark.parametrize("name", OURS)
def test_a_pod_that_matters_is_read_in_full(name, padding):
    found = read_live_pod(body(padding=padding, **OURS[name]))
    assert isinstance(found, Pod)
    assert found.annotations == {
        ANNOTATION_CARDS: "GPU-0",
        **OURS[name].get("annotations", {}),
    }


@pytest.mark.parametrize("padding", [0, MOST_AT_ONCE])
@pytest.mark.parametrize("name", NOT_OURS)
def test_of_other_pods_only_what_they_use_is_read(name, padding):
    found = read_live_pod(memoryview(body(where="n", padding=padding, **NOT_OURS[name])))
    assert isinstance(found, PodUse)
    assert (found.uid, found.node, found.metadata.resource_version) == ("p", "n", "7")
    assert dict(found.requests)["pods"] == 1000


def test_amounts_that_cannot_be_read_are_not_taken_for_nothing():
    assert read_live_pod(body(where="n", cpu="much")).requests is None


def cluster():
    made = ClusterWatch(1, lambda *_: None, FakeClock())
    for name in ("n", "m"):
        made.node_changed(changed(node(name, 16), status={"allocatable": {"cpu": "8"}}))
    return made


def free(made, name="n"):
    found = made.state.free_resources(name)
    return found and found["cpu"]


def test_pods_with_and_without_gpu_memory_use_a_node_until_they_are_gone():
    made = cluster()
    handler = PodHandler(made)
    kinds = ({}, {"share": True}, {"labels": {LABEL_GANG: "g"}})
    for number, kind in enumerate(kinds):
        handler.changed(read_live_pod(body(f"p{number}", **kind)))
        assert free(made) == 8000 - 1000 * number
        handler.changed(read_live_pod(body(f"p{number}", "n", **kind)))
        assert free(made) == 7000 - 1000 * number
    assert free(made, "m") == 8000
    for number, kind in enumerate(kinds):
        last = read_live_pod(body(f"p{number}", "n", **kind))
        handler.deleted(last)
        assert free(made) == 6000 + 1000 * number


def test_a_pod_that_no_longer_belongs_to_a_gang_still_uses_its_node():
    made = cluster()
    handler = PodHandler(made)
    handler.changed(read_live_pod(body("a", "n", labels={LABEL_GANG: "g"})))
    handler.changed(read_live_pod(body("b", schedulingGates=[{"name": GATE_ADMISSION}])))
    assert list(made.state.groups.uids()) == ["a"]
    handler.changed(read_live_pod(body("a", "n")))
    handler.changed(read_live_pod(body("b")))
    assert not list(made.state.groups.uids())
    assert free(made) == 7000


@pytest.mark.parametrize("labels", [{LABEL_GANG: "g"}, {}])
def test_a_bound_pod_without_gpu_memory_needs_its_slot_no_longer(labels):
    made = cluster()
    slots = (Slot("n", (), 0, "a", (("cpu", 1000),)), Slot("m", (), 0, "b", (("cpu", 2000),)))
    made.ledger.keep(Hold("g", slots, 99.0))
    assert (free(made), free(made, "m")) == (7000, 6000)
    PodHandler(made).changed(read_live_pod(body("a", "n", labels=labels)))
    assert (free(made), free(made, "m")) == (7000, 6000)
    assert made.ledger.slot_of("a") is None
    assert made.ledger.slot_of("b") is not None


def test_a_pod_whose_requests_cannot_be_read_makes_its_node_unknown_until_it_is_gone():
    made = cluster()
    handler = PodHandler(made)
    strange = read_live_pod(body("a", "n", cpu="much"))
    handler.changed(strange)
    assert free(made) is None
    assert free(made, "m") == 8000
    handler.deleted(strange)
    assert free(made) == 8000


class Pods(RuleBasedStateMachine):
    """Pods come, are bound, change, end and go; their nodes and what they use are in ``pods``."""

    names = st.sampled_from("abc")
    kinds = st.sampled_from([{}, {"share": True}, {"labels": {LABEL_GANG: "g"}}])
    cores = st.integers(1, 2)

    def __init__(self):
        super().__init__()
        self.cluster = cluster()
        self.handler = PodHandler(self.cluster)
        self.pods = {}
        self.version = 0

    def seen(self, name, where, cores, kind, **parts):
        self.version += 1
        return read_live_pod(
            body(name, where, cpu=str(cores), version=str(self.version), **kind, **parts)
        )

    @rule(name=names, cores=cores, kind=kinds, where=st.sampled_from(["", "n", "m"]))
    def comes_or_changes(self, name, cores, kind, where):
        before, _ = self.pods.get(name, ("", 0))
        self.pods[name] = before or where, cores
        self.handler.changed(self.seen(name, before or where, cores, kind))

    @rule(name=names, cores=cores, kind=kinds)
    def is_said_again_to_have_no_node(self, name, cores, kind):
        if self.pods.get(name, ("", 0))[0]:
            self.handler.changed(self.seen(name, "", cores, kind))

    @rule(name=names, cores=cores, kind=kinds, where=st.sampled_from("nm"), by_event=st.booleans())
    def ends(self, name, cores, kind, where, by_event):
        self.pods.pop(name, None)
        if by_event:
            self.handler.changed(self.seen(name, where, cores, kind, phase="Failed"))
        else:
            self.handler.deleted(self.seen(name, where, cores, kind))

    @rule(kind=kinds)
    def are_listed(self, kind):
        found = [self.seen(name, *pod, kind) for name, pod in self.pods.items()]
        run_to_end(self.handler.replaced(found))

    @invariant()
    def all_that_is_used_is_used_by_them(self):
        for name in ("n", "m"):
            used = sum(cores for where, cores in self.pods.values() if where == name)
            assert free(self.cluster, name) == 8000 - 1000 * used
        assert self.cluster.compare() == 0


TestPods = Pods.TestCase


def test_a_restored_list_is_taken_also_where_it_moves_a_pod():
    made = cluster()
    handler = PodHandler(made)
    handler.changed(read_live_pod(body("a", "n")))
    handler.changed(read_live_pod(body("a", "m")))  # an event that is older
    assert (free(made), free(made, "m")) == (7000, 8000)
    run_to_end(handler.replaced([read_live_pod(body("a", "m"))]))
    assert (free(made), free(made, "m")) == (8000, 7000)
    run_to_end(handler.replaced([]))
    assert (free(made), free(made, "m")) == (8000, 8000)


def test_others_are_pods_that_kube_scheduler_alone_has_placed():
    made = cluster()
    handler = PodHandler(made)
    pods = {
        "web": {},
        "log": {"owner": "DaemonSet"},
        "proxy": {"owner": "Node"},
        "train": {"share": True},
        "member": {"labels": {LABEL_GANG: "g"}},
        "whole": {"containers": [{"resources": {"limits": {"cpu": "1", "nvidia.com/gpu": "1"}}}]},
        "claims": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "g"}]},
    }
    for name, kind in pods.items():
        handler.changed(read_live_pod(body(name, "n", **kind)))
    assert made.state.use.of_others("n") == (1000, 0)
