"""Whatever becomes of writes, reads and watch, no card is ever promised beyond what it has."""

import asyncio
import contextlib
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from extender.binding.timing import WRITE_SECONDS
from gpushare.contract import ANNOTATION_CARDS
from gpushare.errors import ApiError, Conflict, GpushareError, OutcomeUnknown
from tests.builders import pod, run_to_end
from tests.unit.extender.scripted import Bench, changed

SIZES = (12,)
OUTCOMES = ["bound", "refused", "lost", "landed", "late"]


class Outcomes(RuleBasedStateMachine):
    """The API server is the truth; the extender hears of it late, in part, or not at all."""

    pods = Bundle("pods")

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.bench = Bench(*SIZES, notes=Path(self.folder.name) / "notes")
        self.bench.restart()
        self.kube = self.bench.kube
        self.late = []
        self.count = 0

    def teardown(self):
        self.bench.die()
        self.loop.close()
        self.folder.cleanup()

    @property
    def cluster(self):
        return self.bench.cluster

    def run_async(self, work):
        return self.loop.run_until_complete(work)

    @rule(target=pods, units=st.sampled_from([5, 8, 12]), seen=st.booleans())
    def new_pod(self, units, seen):
        self.count += 1
        made = pod(f"p{self.count}", units)
        self.kube.pods[made.metadata.name] = made
        if seen:
            self.cluster.pod_changed(made)
        return made

    @rule(made=pods, outcome=st.sampled_from(OUTCOMES))
    def bind(self, made, outcome):
        there = self.kube.pods.get(made.metadata.name)
        free = there is not None and not there.node
        self.kube.lands = free and outcome in {"bound", "landed"}
        if outcome in {"lost", "landed", "late"}:
            self.kube.outcomes = [OutcomeUnknown("no answer")]
        elif outcome == "refused":
            self.kube.outcomes = [ApiError("forbidden", code=403)]
        else:
            self.kube.outcomes = [] if free else [Conflict("already assigned", code=409)]
        before = len(self.kube.bindings)
        with contextlib.suppress(GpushareError):
            self.run_async(self.bench.bind(made))
        self.kube.outcomes = []
        if outcome == "late" and len(self.kube.bindings) > before:
            self.lands_later(made)

    def lands_later(self, made):
        deadline = self.bench.time.now + WRITE_SECONDS
        self.late.append((deadline, made, self.kube.bindings[-1][2]))

    @rule(made=pods, seconds=st.sampled_from([0.5, WRITE_SECONDS]))
    def the_process_is_killed_while_it_binds_and_starts_again(self, made, seconds):
        before, self.kube.hold = len(self.kube.bindings), asyncio.Event()
        asking = self.loop.create_task(self.bench.bind(made))
        self.run_async(asyncio.sleep(0.001))
        self.bench.die()
        ended = [asking, *asyncio.all_tasks(self.loop)]
        for each in ended:
            each.cancel()
        self.run_async(asyncio.gather(*ended, return_exceptions=True))
        self.kube.hold = None
        if len(self.kube.bindings) > before:
            self.lands_later(made)
        self.bench.time.now += seconds
        self.bench.restart()

    @rule()
    def a_late_write_lands(self):
        self.late = [write for write in self.late if write[0] > self.bench.time.now]
        if not self.late:
            return
        _, made, annotations = self.late.pop(0)
        there = self.kube.pods.get(made.metadata.name)
        if there is not None and not there.node:
            self.kube.land(there, "n", annotations)

    @rule(seconds=st.sampled_from([0.5, 1.0, WRITE_SECONDS, 5.0]))
    def time_passes_and_reserves_are_settled(self, seconds):
        self.run_async(self.bench.settle(after=seconds))
        self.bench.journal.beat()

    @rule(made=pods)
    def the_watch_tells(self, made):
        there = self.kube.pods.get(made.metadata.name)
        if there is None:
            self.cluster.pod_deleted(made)
        else:
            self.cluster.pod_changed(there)

    @rule()
    def a_relist(self):
        run_to_end(
            self.cluster.replacing_pods([p for p in self.kube.pods.values() if not p.is_terminal])
        )

    @rule(made=pods)
    def pod_ends(self, made):
        there = self.kube.pods.get(made.metadata.name)
        if there is not None and there.node:
            self.kube.pods[made.metadata.name] = changed(there, status={"phase": "Failed"})

    @rule(made=pods)
    def pod_is_deleted(self, made):
        self.kube.pods.pop(made.metadata.name, None)

    @invariant()
    def no_card_holds_more_than_it_has(self):
        promised = {}
        for there in self.kube.pods.values():
            if there.node and not there.is_terminal:
                units = int(there.containers[0].limits["aliyun.com/gpu-mem"])
                card = there.annotations[ANNOTATION_CARDS]
                promised[card] = promised.get(card, 0) + units
        assert all(promised.get(f"GPU-{i}", 0) <= size for i, size in enumerate(SIZES)), promised
        for used, reserved in self.bench.held:
            assert used + reserved <= max(SIZES)

    @invariant()
    def the_ledger_equals_a_fresh_count(self):
        assert self.cluster.compare() == 0


TestOutcomes = Outcomes.TestCase
TestOutcomes.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
