"""What the watch says about pods becomes the gangs, of members with and without GPU memory."""

from extender.watch.cluster import ClusterWatch
from tests.builders import node, pod, run_to_end
from tests.fakes.clock import FakeClock
from tests.gangs import member


def cluster():
    made = ClusterWatch(1, lambda *_: None, FakeClock())
    made.node_changed(node("n", 16))
    return made


def names(made):
    return {
        str(group.key): [each.metadata.name for each in group.present()]
        for group in made.state.groups
    }


def test_members_with_and_without_gpu_memory_are_in_the_gang():
    made = cluster()
    made.pod_changed(member("a"))
    made.pod_changed(member("b", units=None))
    made.pod_changed(pod("single", 1))
    assert names(made) == {"default/labels/g": ["a", "b"]}
    made.pod_changed(member("b", units=None, node="n", version="2"))
    assert made.state.groups.of("default-b").bound == 1
    made.pod_changed(member("b", "h", units=None, node="n", version="3"))
    assert names(made) == {"default/labels/g": ["a"], "default/labels/h": ["b"]}


def test_deleted_and_ended_members_are_forgotten():
    made = cluster()
    for each in (member("a"), member("b", units=None), member("c"), member("d", units=None)):
        made.pod_changed(each)
    made.pod_deleted(member("a"))
    made.pod_deleted(member("b", units=None))
    made.pod_changed(member("c", phase="Failed", version="2"))
    made.pod_changed(member("d", units=None, phase="Succeeded", version="2"))
    assert names(made) == {}


def test_a_list_replaces_all_members():
    made = cluster()
    for each in (member("a"), member("b", units=None), member("c"), member("d", units=None)):
        made.pod_changed(each)
    listed = [member("a"), member("d", "h", units=None, version="2"), member("e", units=None)]
    run_to_end(made.replacing_pods(listed))
    assert names(made) == {"default/labels/g": ["a", "e"], "default/labels/h": ["d"]}
