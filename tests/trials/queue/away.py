"""While parts of gpushare are missing, pods are created, no gang is in part, and quotas hold."""

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from gpushare.quota.quota import Quota, parse
from localcluster.errors import ApiError, CommandError
from localcluster.wait import wait_until
from tests.cluster.gated import COMPONENTS, await_gating, by_policy
from tests.trials.queue.caught import gated_by_webhook
from tests.trials.queue.complaints import GATE_REMOVED
from tests.trials.queue.history import Seen
from tests.trials.queue.placed import unplaced
from tests.trials.queue.stage import Described, Stage, gang

QUOTAS: Final = {"away-0": "160", "away-1": "240", "away-2": "320,Odd=120"}
SIZES: Final = 4, 8, 12, 16
PHASE_SECONDS: Final = 12.0
EVERY_SECONDS: Final = 0.15  # a pod or gang is created
LIFE_SECONDS: Final = 6.0
PRESENT: Final = 150
GANGS: Final = 0.3
GANG: Final = 4
USER: Final = "somebody"
# A gang is in part for a moment while its members are bound. Without an extender nothing goes on.
PART_SECONDS: Final = 10.0
PLACED_SECONDS: Final = 330.0  # what did not come rests for up to 300 s
_GUARD: Final = "validatingadmissionpolicybinding/gpushare-gates"
_MOST_SECONDS: Final = 5.0  # for one creation


@dataclass
class Away:
    """The manifests of the pods have no gate: policy or webhook add it while they are there."""

    stage: Stage
    seconds: float  # without an extender
    rng: random.Random
    _made: int = 0
    _slowest: float = 0.0
    _in_part: dict[str, float] = field(default_factory=dict)  # gangs, since when
    _longest: float = 0.0
    _removed: int = 0

    def play(self) -> str:
        stage = self.stage
        stage.configure()
        for name, quota in QUOTAS.items():
            stage.namespace(name, quota)
        with by_policy(stage.cluster):
            await_gating(stage.cluster, next(iter(QUOTAS)))
            self._go_on("with the policy", PHASE_SECONDS)
            self._without_extenders()
            self._without_guard()
        self._go_on("without the policy", PHASE_SECONDS)
        with gated_by_webhook(stage):
            await_gating(stage.cluster, next(iter(QUOTAS)))
            self._go_on("with the webhook", PHASE_SECONDS)
            stage.cluster.stop(f"extender-{stage.seats.names[0]}")
            self._go_on("nobody answers the webhook", PHASE_SECONDS)
            stage.cluster.start(f"extender-{stage.seats.names[0]}")
        self._go_on("without the webhook", PHASE_SECONDS)
        wait_until("all to be placed that fits", self._unplaced, seconds=PLACED_SECONDS)
        stage.wait_whole()
        pods = list(stage.history.pods.values())
        gated = sum(each.was_gated for each in pods)
        return (
            f"{len(pods)} pods, {gated} of them gated, {sum(e.is_bound for e in pods)} bound, "
            f"{len({e.gang for e in pods} - {''})} gangs; the slowest creation took "
            f"{self._slowest * 1000:.0f} ms; a user removed {self._removed} gates; a gang was in "
            f"part for {self._longest:.1f} s at most while an extender ran, and none at the end"
        )

    def _without_extenders(self) -> None:
        stage = self.stage
        for seat in stage.seats.names:
            stage.cluster.stop(f"extender-{seat}")
        self._go_on("no extender", self.seconds, is_served=False)
        for seat in stage.seats.names:
            stage.cluster.start(f"extender-{seat}")
        stage.seats.wait_leading_extender()
        self._go_on("an extender again", PHASE_SECONDS)

    def _without_guard(self) -> None:
        """A user who may change pods removes gates once an administrator has let them."""
        stage = self.stage
        kubectl = stage.cluster.kubectl
        for name in QUOTAS:
            words = ("--clusterrole=edit", f"--user={USER}", "-n", name)
            kubectl("create", "rolebinding", USER, *words)
        kubectl("delete", _GUARD)
        self._go_on("a user removes gates", PHASE_SECONDS, each=self._remove_gate)
        kubectl("apply", "-f", str(COMPONENTS / "gates" / "policy.yaml"))
        if not self._removed:
            stage.lost.append("away: the user could remove no gate")

    def _remove_gate(self) -> None:
        waiting = [each for each in self.stage.history.present() if each.is_gated]
        members = [each for each in waiting if each.gang]
        if not waiting:
            return
        chosen = self.rng.choice(members or waiting)
        patch = json.dumps({"spec": GATE_REMOVED})
        try:
            words = ("pod", chosen.name, "-n", chosen.namespace, f"--as={USER}", "-p", patch)
            self.stage.cluster.kubectl("patch", *words)
        except CommandError:
            return  # the pod is gone, or the API server still enforces the policy
        self._removed += 1

    def _go_on(
        self,
        what: str,
        seconds: float,
        *,
        is_served: bool = True,
        each: Callable[[], None] = lambda: None,
    ) -> None:
        """Create and end pods for some seconds."""
        stage, until, before = self.stage, time.monotonic() + seconds, self._made
        begun = len(stage.history.moments)
        self._in_part.clear()
        while (now := time.monotonic()) < until:
            present = stage.history.present()
            self._end_those_that_have_run(present, now)
            if len(present) < PRESENT:
                self._create()
            each()
            if is_served:
                self._check_parts(now)
            time.sleep(max(0.0, EVERY_SECONDS - (time.monotonic() - now)))
        bound = sum(each.is_binding for each in stage.history.moments[begun:])
        stage.say(f"  {what}: {self._made - before} pods and gangs created, {bound} pods bound")

    def _create(self) -> None:
        rng, number = self.rng, self._made
        self._made += 1
        namespace, units = rng.choice(list(QUOTAS)), rng.choice(SIZES)
        more: dict[str, Any] = {"is_gated": False}
        made = [Described(f"s{number}", namespace, units, **more)]
        if rng.random() < GANGS:
            made = gang(f"g{number}", namespace, GANG, units, **more)
        for described in made:
            begun = time.monotonic()
            try:
                self.stage.create(described)
            except ApiError as err:
                self.stage.lost.append(f"away: {described.name} was not created: {err}")
            took = time.monotonic() - begun
            self._slowest = max(self._slowest, took)
            if took > _MOST_SECONDS:
                self.stage.lost.append(f"away: {described.name} took {took:.1f} s")

    def _end_those_that_have_run(self, present: list[Seen], now: float) -> None:
        """End single pods, and gangs as a whole, some time after they were bound."""
        bound_at: dict[str, float] = {}
        for each in present:
            key = each.gang or each.uid
            bound_at[key] = max(bound_at.get(key, 0.0), each.bound_at)
        over = [e for e in present if now - bound_at[e.gang or e.uid] > LIFE_SECONDS]
        self.stage.delete(*((each.namespace, each.name) for each in over))

    def _check_parts(self, now: float) -> None:
        parts = self.stage.partial()
        self._in_part = {name: self._in_part.get(name, now) for name in parts}
        for name, since in self._in_part.items():
            if now - since > PART_SECONDS >= self._longest:
                self.stage.lost.append(f"away: {name} is in part: {parts[name]} members")
            self._longest = max(self._longest, now - since)

    def _unplaced(self) -> str | None:
        history, quotas = self.stage.history, dict[str, Quota | None]()
        for name, text in QUOTAS.items():
            quotas[name] = parse(text)
        return unplaced(history.present(), history.sizes, quotas, self.stage.models)
