"""Show a cluster that does not share its GPUs by memory yet in two steps: today, and shared (pure).

They are an ordinary scenario. At the second step each pod with whole GPUs is deleted, and created
again where it was placed by memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from msgspec.structs import replace as changed

from gpushare.placement.rank import Policies
from gpusharectl.simulate import view
from gpusharectl.simulate.gain import sentences
from gpusharectl.simulate.gain.assumed import Answer, Shared, answer, sharing
from gpusharectl.simulate.gain.needs import Needs
from gpusharectl.simulate.run import Run
from gpusharectl.simulate.scenario import PodEvent, Scenario

TODAY: Final = "today"
SHARED: Final = "shared by memory"
_THEN: Final = 1  # second


@dataclass(slots=True)
class Begun:
    """A ``run`` to show. If the files only show a cluster as it is, ``today`` has ended.

    Then ``answer`` is about it, None if it has no GPUs, and a step of the shared GPUs follows in
    the run if whole GPUs are offered.
    """

    run: Run
    needs: Needs
    today: Run | None = None
    answer: Answer | None = None

    def tail(self) -> view.Tail:
        """Return what is known after all steps."""
        run, found = self.today or self.run, self.answer
        if found is None:
            found = answer(run.cluster, run.scenario.pending, self.needs)
        return view.Tail(run.unknown, found.gain if found is not None else None)

    def headlines(self) -> Mapping[str, list[str]]:
        """Return what the steps show, by their titles."""
        if self.answer is None:
            return {}
        gain = self.answer.gain
        return {TODAY: list(sentences.today(gain)), SHARED: list(sentences.if_shared(gain))}


def begin(scenario: Scenario, policies: Policies, needs: Needs) -> Begun:
    """Return a run; of two steps if the files show a cluster that does not share its GPUs yet."""
    run = Run(scenario, policies)
    if not _is_cluster_as_it_is(scenario):
        return Begun(run, needs)
    for _ in run.times():
        pass
    found = answer(run.cluster, scenario.pending, needs)
    if found is None:
        nothing = None if run.cluster.sharing() else run
        return Begun(Run(scenario, policies), needs, nothing)
    played = replace(scenario, titles={0: TODAY})
    if found.shared is not None:
        played = _today_and_shared(scenario, found.shared)
    return Begun(Run(played, policies), needs, run, found)


def placed_again(scenario: Scenario, policies: Policies, needs: Needs) -> Scenario:
    """Return the scenario with pods with whole GPUs as Pending ones that request memory.

    The nodes that they are on share their GPUs by memory.
    """
    run = Run(scenario, policies)
    for _ in run.times():
        pass
    asking = sharing(run.cluster, scenario.pending, needs)
    pods = [replace(each, pod=asking.get(each.pod.uid, each.pod)) for each in scenario.pods]
    pods.sort(key=lambda each: each.pod.metadata.creation_timestamp or "~")
    is_whole = run.cluster.is_whole
    nodes = [
        replace(each, gpus=None) if is_whole(each.node.name) else each for each in scenario.nodes
    ]
    again = sum(bool(each.pod.node) and each.pod.uid in asking for each in scenario.pods)
    again += scenario.placed_again
    return replace(scenario, nodes=nodes, pods=pods, placed_again=again)


def _is_cluster_as_it_is(scenario: Scenario) -> bool:
    """Return whether all is at one time, and no pod is there to be placed."""
    waiting = {pod.uid for pod in scenario.pending}
    return not any(each.at for each in scenario.nodes) and all(
        not each.at and each.delete is None and (each.pod.node or each.pod.uid in waiting)
        for each in scenario.pods
    )


def _today_and_shared(scenario: Scenario, found: Shared) -> Scenario:
    changing = {pod.uid for pod in found.today}
    events = [
        replace(each, delete=_THEN) if each.pod.uid in changing else each for each in scenario.pods
    ]
    # Pods that the gain counts evict nobody.
    waiting = [
        changed(pod, spec=changed(pod.spec, preemption_policy="Never")) for pod in found.waiting
    ]
    events += [PodEvent(_THEN, None, pod) for pod in (*found.then, *waiting)]
    return replace(scenario, pods=events, titles={0: TODAY, _THEN: SHARED})
