"""Whatever is created, ends or changes: nothing is admitted beyond the quota of a namespace."""

import asyncio
from collections import Counter
from contextlib import suppress
from itertools import chain

from hypothesis import given, settings
from hypothesis import strategies as st

from extender.gangs.rights import PatchRight
from extender.gates.releaser import Releaser
from extender.queue.admission import Admission
from extender.settings.configuration import QueueSettings
from gpushare.contract import ANNOTATION_CARDS, LABEL_CARD_COUNT
from gpushare.errors import GpushareError
from gpushare.objects.scheduling import SchedulingGate
from gpushare.quota.quota import parse
from tests.builders import pod
from tests.gangs import member
from tests.unit.extender.queue.test_admission import GATED, check, stage
from tests.unit.extender.queue.test_quotas import limit, with_models
from tests.unit.extender.scripted import changed

NAMESPACES = ("x", "y", "free")
MODELS = {"a": ("T4", "T4"), "b": ("A100",), "c": ("T4", "A100")}
QUOTAS = (None, "0", "6", "14", "30", "20,T4=8", "T4=8", "24,T4=10,A100=6", "A100=0")

_NAMESPACE, _PICK = st.sampled_from(NAMESPACES), st.integers(0, 99)
_UNITS, _GATED = st.sampled_from((2, 4, 6, 8)), st.booleans()
ADMIT = st.tuples(st.just("admit"))
LIMIT = st.tuples(st.just("limit"), st.sampled_from(NAMESPACES[:2]), st.sampled_from(QUOTAS))
STEP = st.one_of(
    st.tuples(st.just("pod"), _NAMESPACE, _UNITS, _GATED, st.integers(1, 2), st.integers(0, 2)),
    st.tuples(st.just("gang"), _NAMESPACE, _UNITS, _GATED, st.integers(1, 3), st.integers(1, 4)),
    st.tuples(st.just("schedule"), _PICK, st.sets(st.sampled_from("abc"), max_size=2)),
    st.tuples(st.just("bind"), st.lists(st.tuples(_PICK, st.sampled_from("abc")), max_size=3)),
    ADMIT,
    st.tuples(st.just("terminate"), _PICK),
    st.tuples(st.just("delete"), _PICK),
    LIMIT,
    st.tuples(st.just("pass"), st.sampled_from((1.0, 31.0))),
)
# Most pods are created under a quota, and something is admitted in between.
STEPS = st.tuples(
    st.lists(LIMIT, max_size=2), st.lists(st.tuples(STEP, STEP, ADMIT | STEP), max_size=12)
).map(lambda drawn: [*drawn[0], *chain.from_iterable(drawn[1])])


SETTINGS = st.builds(
    QueueSettings,
    order=st.sampled_from(("fair", "fifo")),
    backfill=st.booleans(),
    reserve_after_seconds=st.sampled_from((0, 1)),
    autoscaled=st.booleans(),
)


class World:
    def __init__(self, queue=None):
        self.cluster, self.api, self.admission = stage(dict.fromkeys(MODELS, (16,)))
        if queue is not None:
            gangs, planning = self.cluster.gangs, self.cluster.planning
            right = PatchRight(self.api, self.cluster.time)
            self.admission = Admission(gangs, planning, Releaser(self.api), right, queue)
        for name, models in MODELS.items():
            self.cluster.put_node(with_models(name, *models))
        self.quotas = dict.fromkeys(NAMESPACES)
        self.count = 0

    async def do(self, kind, *how):
        await getattr(self, f"do_{kind}")(*how)

    async def do_pod(self, namespace, units, is_gated, cards, priority):
        self.count += 1
        made = pod(f"p{self.count}", units, labels={LABEL_CARD_COUNT: str(cards)})
        gates = tuple(map(SchedulingGate, GATED)) if is_gated else None
        spec = {"priority": priority, "scheduling_gates": gates}
        self.cluster.add(changed(made, {"namespace": namespace}, spec=spec))

    async def do_gang(self, namespace, units, is_gated, minimum, size):
        self.count += 1
        gang, gates = f"g{self.count}", GATED if is_gated else ()
        for number in range(size):
            name, least = f"{gang}-{number}", min(minimum, size)
            self.cluster.add(
                member(name, gang, least, units=units, namespace=namespace, gates=gates)
            )

    async def do_schedule(self, pick, without):
        if (name := self.picked(pick)) and not self.cluster.kube.pods[name].gates:
            with suppress(GpushareError):
                await self.cluster.schedule(name, without=without)

    async def do_bind(self, binds):
        """Bind at once what filter has not been asked about, or long ago."""
        chosen = {self.picked(pick): node for pick, node in binds}
        works = [
            self.cluster.bind(name, node)
            for name, node in chosen.items()
            if name and self.is_unbound(name)
        ]
        for error in await asyncio.gather(*works, return_exceptions=True):
            assert error is None or isinstance(error, GpushareError), error

    async def do_admit(self):
        await check(self.admission)

    async def do_terminate(self, pick):
        if name := self.picked(pick):
            self.cluster.terminate(name)

    async def do_delete(self, pick):
        if name := self.picked(pick):
            self.cluster.delete(name)

    async def do_limit(self, namespace, quota):
        self.quotas[namespace] = None if quota is None else parse(quota)
        limit(self.cluster, quota, namespace)

    async def do_pass(self, seconds):
        self.cluster.time.now += seconds
        self.cluster.cluster.expire_plans()

    def picked(self, pick):
        names = sorted(self.cluster.kube.pods)
        return names[pick % len(names)] if names else ""

    def is_unbound(self, name):
        found = self.cluster.kube.pods[name]
        return not (found.node or found.gates or found.metadata.deletion_timestamp)

    def used(self):
        """Return what each namespace uses by model, from its pods and what is kept for them."""
        ledger, found, counted = self.cluster.cluster.ledger, Counter(), set()
        namespaces = {p.uid: p.metadata.namespace for p in self.cluster.kube.pods.values()}
        uses = []
        for each in self.cluster.kube.pods.values():
            if each.node:
                share = ledger.share(each.uid)
                assert each.annotations[ANNOTATION_CARDS] == ",".join(share.cards)
                uses.append((each.uid, each.node, share.cards, share.units))
        uses += [(r.pod_uid, r.node, r.cards, r.units) for r in ledger.reserves()]
        uses += [(s.pod_uid, s.node, s.cards, s.units) for k in ledger.kept() for s in k.slots]
        for uid, node, cards, units in uses:
            if uid not in counted:
                counted.add(uid)
                for card in cards:
                    model = MODELS[node][int(card.rpartition("-")[2])]
                    found[namespaces[uid], model] += units
                    found[namespaces[uid], None] += units
        return found

    def limits(self):
        for namespace, quota in self.quotas.items():
            if quota is not None:
                yield (namespace, None), quota.units
                yield from (((namespace, model), most) for model, most in quota.models.items())


@settings(max_examples=200)
@given(STEPS, SETTINGS)
def test_use_grows_only_within_the_quota(steps, queue):
    async def run():
        world = World(queue)
        for step in steps:
            before = world.used()
            await world.do(*step)
            after = world.used()
            for key, most in world.limits():
                grown = after[key] > before[key]
                assert not grown or most is None or after[key] <= most, (step, key, after[key])

    asyncio.run(run())


@settings(max_examples=60)
@given(STEPS)
def test_what_waits_is_placed_as_far_as_a_quota_that_is_taken_away_was_the_cause(steps):
    async def run():
        world = World()
        for step in steps:
            await world.do(*step)
        for namespace in NAMESPACES[:2]:
            await world.do_limit(namespace, None)
        for name in list(world.cluster.kube.pods):
            if world.cluster.kube.pods[name].node:
                world.cluster.delete(name)
        await world.do_pass(400.0)
        await world.do_pod("x", 2, True, 1, 9)
        for _ in range(3):
            await world.do_admit()
            await world.do_pass(0.5)
        assert f"p{world.count}" in world.api.patches

    asyncio.run(run())
