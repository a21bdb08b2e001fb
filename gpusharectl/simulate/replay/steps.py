"""The steps of a simulation as the live page's events (pure)."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec.structs import replace

from gpushare.answers import explain, inspect
from gpushare.answers.gangs import choose_gangs
from gpushare.live_page.feed import MOST_GANGS, NEVER, Feed, PendingPod
from gpushare.live_page.history import Sample, steps_event
from gpushare.placement.rank import Policies
from gpushare.process.time_slices import run_all
from gpusharectl.simulate import view
from gpusharectl.simulate.other_systems.other_pods import gpus_of
from gpusharectl.simulate.run import Run
from gpusharectl.simulate.scenario import Scenario
from gpusharectl.simulate.world import SimulatedWorld

CHARTED: Final = 120  # steps
NO_HEADLINES: Final[Mapping[str, list[str]]] = {}


class Played(msgspec.Struct, rename="camel"):
    """What the page says of the shown step. ``seconds`` is the simulated time, ``placed`` pods.

    ``at`` is the time for people, or the step's title.
    """

    step: int
    steps: int
    at: str
    seconds: int
    happened: list[str]
    placed: list[str]


class _About(msgspec.Struct, rename="camel"):
    unit_mib: int = msgspec.field(name="unitMiB")
    simulation: Played
    usage: bool = False


class Replay:
    """Goes to any step; going back begins again, because a run is only computed forward.

    ``left_out`` is that of the run's head. ``headlines`` by a step's title are told instead of what
    happened.
    """

    def __init__(
        self,
        scenario: Scenario,
        policies: Policies,
        left_out: Sequence[str],
        headlines: Mapping[str, list[str]] = NO_HEADLINES,
    ) -> None:
        self._scenario, self._policies = scenario, policies
        self._left_out, self._headlines = left_out, headlines
        self._begin()

    def _begin(self) -> None:
        self._run = Run(self._scenario, self._policies)
        self._steps = self._run.steps()
        self._shown: view.Step | None = None
        self._charted: list[tuple[str, Sample]] = []

    @property
    def count(self) -> int:
        return self._run.count

    def events(self, number: int) -> Iterator[bytes]:
        """Yield the events with the whole cluster after this step."""
        step = self._go(number)
        feed = Feed(_About(self._run.cluster.unit_mib, self._played(step)))
        closed = {node.name: node.closed for node in step.nodes if not node.cards}
        for node in step.nodes:
            ledger = self._run.cluster.ledger
            feed.put_node(
                node.name, inspect.view_node(ledger, node.name, closed.get(node.name, ""))
            )
        gangs = {(gang.namespace, gang.name): gang.key for gang in step.gangs}
        for group in step.waiting:
            gang = gangs.get((group.namespace, group.gang), "")
            for pod in group.pods:
                feed.put_pod(f"{pod.namespace}/{pod.name}", _pending(group, pod, gang))
        run_all(feed.put_gangs(*run_all(choose_gangs(self._run.gangs, "", MOST_GANGS))))
        yield from feed.events(NEVER)
        yield steps_event(self._charted[-CHARTED:])

    def explained(
        self, number: int, namespace: str, name: str, shown: int
    ) -> explain.PodView | None:
        """Explain a pod after this step; None if there is no such pod."""
        step = self._go(number)
        world = SimulatedWorld(self._run.cluster, self._run.gangs)
        pod = self._run.pod(namespace, name)
        if pod is None:
            return None
        group = next((each for each in step.waiting if _has(each, namespace, name)), None)
        reasons = group.reasons if group is not None else {}
        asked = explain.Asked(0.0, 0.0, sum(reasons.values()), reasons)
        found = run_all(explain.explain(world, pod, asked, now=0.0, shown=shown))
        if group is not None and gpus_of(pod):  # explain knows nothing of whole GPUs
            return replace(found, says=group.sentence)
        return found

    def _go(self, number: int) -> view.Step:
        if self._shown is not None and number < self._shown.number:
            self._begin()
        while self._shown is None or self._shown.number < number:
            step = self._shown = next(self._steps)
            pending = sum(len(group.pods) for group in step.waiting)
            used, total = step.used * step.unit_mib, step.units * step.unit_mib
            self._charted.append((_when(step), Sample(step.at, used, total, pending)))
        return self._shown

    def _warning(self) -> Iterator[str]:
        if self._left_out:
            yield view.left_out(self._left_out)

    def _played(self, step: view.Step) -> Played:
        return Played(
            step.number,
            self.count,
            _when(step),
            step.at,
            [*self._warning(), *(self._headlines.get(step.title) or view.lines(step))],
            [f"{namespace}/{name}" for _, namespace, name in view.placed(step)],
        )


def _when(step: view.Step) -> str:
    return step.title or f"after {view.clock(step.at)}"


def _pending(group: view.Waiting, pod: view.WaitingPod, gang: str) -> PendingPod:
    # The page counts a simulation's time from 1970.
    created = datetime.fromtimestamp(pod.since, UTC).isoformat()
    made = PendingPod(
        f"{pod.namespace}/{pod.name}", pod.namespace, pod.name, group.priority, created
    )
    made.units, made.cards, made.by = group.units, group.cards, "gpushare"
    made.why, made.reasons = group.sentence, group.reasons
    made.gang, made.own = gang, group.own if gang else ""
    if group.says:
        made.state = "refused"
    return made


def _has(group: view.Waiting, namespace: str, name: str) -> bool:
    return any((pod.namespace, pod.name) == (namespace, name) for pod in group.pods)
