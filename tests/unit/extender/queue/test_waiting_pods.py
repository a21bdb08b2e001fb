"""The gated pods that wait for room, however they come, change and go."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from extender.decisions.queue.waiting_pods import WaitingPods
from extender.gangs.planning import GangPlanning
from extender.queue.admission_round import AdmissionRound
from extender.settings.configuration import QueueSettings
from gpushare.contract import ANNOTATION_CARDS, GATE_ADMISSION
from gpushare.ledger.holds import Hold, Slot
from gpushare.objects.scheduling import SchedulingGate
from localcluster.wait import patient
from tests.builders import pod
from tests.gangs import member
from tests.unit.extender.gangs.driver import GangCluster
from tests.unit.extender.queue.test_admission import check, stage
from tests.unit.extender.scripted import DELETED, changed

OURS, FOREIGN = SchedulingGate(GATE_ADMISSION), SchedulingGate("example.com/other")
GATES = {"ours": (OURS,), "both": (OURS, FOREIGN), "none": None}
NAMES = ("a", "b", "c", "d")

put = st.tuples(
    st.just("put"),
    st.sampled_from(NAMES),
    st.sampled_from((3, 5)),
    st.sampled_from(tuple(GATES)),
    st.integers(0, 2),
)
other = st.tuples(
    st.sampled_from(("delete", "end", "gang", "hold", "drop", "renew")), st.sampled_from(NAMES)
)


def firsts_of(queue: WaitingPods) -> list[tuple[int, str]]:
    return sorted((-first.priority, first.owner) for first, _ in queue.firsts())


@given(st.lists(put | other, max_size=30))
def test_the_queue_has_the_most_urgent_pod_of_each_shape_that_has_no_slot(steps):
    cluster = GangCluster({"n": (16,)})
    state, queue = cluster.cluster.state, WaitingPods(cluster.cluster.state)
    for step in steps:
        kind, name = step[:2]
        here = cluster.kube.pods.get(name)
        if kind == "put":
            _, _, units, gates, priority = step
            made = pod(name, units, uid=f"default-{name}")
            spec = {"scheduling_gates": GATES[gates], "priority": priority}
            cluster.add(changed(made, spec=spec))
        elif kind == "gang":
            cluster.add(member(name, gates=(GATE_ADMISSION,)))
        elif kind == "delete" and here is not None:
            cluster.delete(name)
        elif kind == "end" and here is not None:
            cluster.add(changed(here, DELETED))
        elif kind == "hold":
            slot = Slot("n", ("GPU-0",), 3, f"default-{name}")
            state.ledger.keep(Hold(f"default-{name}", (slot,), 1e9))
        elif kind == "drop":
            state.ledger.drop_slot(f"default-{name}")
        elif kind == "renew":
            list(queue.renew())
    list(queue.renew())
    waiting = [
        each
        for each in cluster.kube.pods.values()
        if each.has_our_gate
        and not each.has_foreign_gate
        and not each.metadata.deletion_timestamp
        and state.groups.of(each.uid) is None
    ]
    without = [each for each in waiting if state.ledger.slot_of(each.uid) is None]
    firsts = {}
    for each in sorted(without, key=lambda p: (-p.priority, p.uid)):
        firsts.setdefault(str(each.containers), (-each.priority, each.uid))
    assert firsts_of(queue) == sorted(firsts.values())
    with_slots = {each.uid for each in queue.with_slots()}
    assert with_slots == {each.uid for each in waiting} - {each.uid for each in without}


async def test_a_pod_whose_room_was_lost_is_planned_again():
    cluster, api, admission = stage({"a": (16,)})
    cluster.add(changed(pod("p", 12), spec={"scheduling_gates": (OURS,)}))
    asked = asyncio.Event()

    async def release_pod(*_):
        asked.set()
        await asyncio.Event().wait()  # the API server does not answer

    api.release_pod = release_pod
    running = asyncio.create_task(check(admission))
    await asyncio.wait_for(asked.wait(), patient(1))
    assert cluster.held == 1
    cluster.cluster.ledger.drop_slot("uid-p")
    assert cluster.held == 0
    async with asyncio.TaskGroup() as tasks:
        await admission.check(tasks)
    assert cluster.held == 1
    running.cancel()


async def test_room_that_appears_while_pods_are_tried_goes_to_the_most_urgent_that_fits():
    cluster, _, _ = stage({"a": (16,), "b": (16,)})
    for name in "ab":
        cluster.add(pod(f"on-{name}", 16, node=name, annotations={ANNOTATION_CARDS: "GPU-0"}))
    for name, units, priority in (("urgent", 12, 2), ("second", 6, 1), ("last", 3, 0)):
        spec = {"scheduling_gates": (OURS,), "priority": priority}
        cluster.add(changed(pod(name, units), spec=spec))
    tried = []

    class Freeing(GangPlanning):
        async def hold_for(self, ask, *more):
            tried.append(ask.owner)
            found = await super().hold_for(ask, *more)
            if len(tried) == 1:
                cluster.delete("on-b")
            return found

    async def admitted(_):
        pass

    state, planning = cluster.cluster.state, Freeing(cluster.cluster.scheduling)
    pods = WaitingPods(state)
    await AdmissionRound(cluster.gangs, planning, pods, QueueSettings()).run(admitted)
    kept = [name for name in ("urgent", "second", "last") if state.ledger.slot_of(f"uid-{name}")]
    assert kept == ["urgent", "last"]
    assert tried == ["uid-urgent", "uid-second", "uid-urgent", "uid-second", "uid-last"]
