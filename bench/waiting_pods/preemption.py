"""Whether kube-scheduler preempts for a pod, by what filter and preempt answer."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from bench.apiserver import PODS
from bench.waiting_pods.forms import (
    FORMS,
    every_name_failed,
    one_name,
    others,
    others_and_one,
    whole_cluster,
)
from bench.waiting_pods.recording import Decide, Narrow, veto
from bench.waiting_pods.setting import HIGH, Setting, filling_pods
from bench.world import LABEL, pod

FULL: Final = 10  # nodes that pods of a lower priority fill: kube-scheduler rejects them itself
TRIALS: Final = 20
GROUP: Final = "preemptor"
LOW: Final = "low"


async def preemption(setting: Setting) -> None:
    """Print for each form of a rejection whether preempt is called, and the pod's condition."""
    every = setting.node_names
    await setting.create(filling_pods(every[:FULL]))
    await setting.until_quiet()
    forms: dict[str, Decide] = {
        **FORMS,
        "no node, every asked one in FailedNodes": every_name_failed,
        "every node of the cluster": whole_cluster(every),
        "the nodes not asked for": others(every),
        "the nodes not asked for and one": others_and_one(every),
    }
    print(f"\n{len(every)} nodes, of them {FULL} full of pods with a lower priority")
    print("| unresolvable in the answer | asked for | preempt calls: nodes | message |")
    print("|---|---|---|---|", flush=True)
    for number, (form, decide) in enumerate(forms.items()):
        await _form(setting, f"{GROUP}-{number}", form, decide)
    await setting.delete(LOW)
    await setting.until_quiet()


async def _form(setting: Setting, name: str, form: str, decide: Decide) -> None:
    setting.extender.decide = decide
    setting.extender.calls.clear()
    await setting.create([pod(name, 4, GROUP, spec={"priorityClassName": HIGH})])
    await setting.until("a filter call", lambda: bool(setting.extender.of("filter", name)))
    await setting.until_quiet()
    asked = sorted({len(each.nodes) for each in setting.extender.of("filter", name)})
    preempts = [len(each.nodes) for each in setting.extender.of("preempt", name)]
    condition = (await setting.read(name)).condition("PodScheduled")
    message = condition.message if condition else None
    print(f"| {form} | {asked} | {len(preempts)}: {sorted(set(preempts))} | {message} |")
    await setting.delete(GROUP)
    await setting.until_quiet()


def keep_all(victims: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"NodeNameToMetaVictims": victims}


async def nominations(setting: Setting) -> None:
    """Print what a watch shows of pods for whom preempt was answered by ``{}`` and by victims.

    Half of the nodes are full of pods with a lower priority, and filter rejects the others, so that
    each change of the pod makes kube-scheduler try again.
    """
    setting.extender.decide = one_name
    print(f"\n{TRIALS} pods in turn")
    print("| preempt answers | preempt calls | nominated | victims deleted |\n|---|---|---|---|")
    for title, narrow in (("{}", veto), ("the victims", keep_all)):
        await setting.create(filling_pods(setting.node_names[:FULL]))
        await setting.until_quiet()
        await _trials(setting, title, narrow)
        await setting.delete(LOW)
        await setting.until_quiet()


async def _trials(setting: Setting, title: str, narrow: Narrow) -> None:
    setting.extender.narrow = narrow
    setting.extender.calls.clear()
    nominated: set[str] = set()
    ended: set[str] = set()
    since = await setting.api.version(PODS)

    async def watch(label: str) -> None:
        async for _, found in setting.api.changes(f"{LABEL}={label}", since):
            if found.status.nominated_node_name:
                nominated.add(found.metadata.name)
            if label == LOW and found.metadata.deletion_timestamp:
                ended.add(found.metadata.name)

    watches = [asyncio.create_task(watch(label)) for label in (GROUP, LOW)]
    for number in range(TRIALS):
        name = f"{GROUP}-{number}"
        await setting.create([pod(name, 4, GROUP, spec={"priorityClassName": HIGH})])
        await setting.until("preempt", lambda: bool(setting.extender.of("preempt", name)))  # noqa: B023
        await setting.patch(name, {"metadata": {"annotations": {"bench": "again"}}})
        await setting.until_quiet(1.0)
        await setting.delete(GROUP)
    for each in watches:
        each.cancel()
        with suppress(asyncio.CancelledError):
            await each
    asked = len(setting.extender.of("preempt"))
    print(f"| {title} | {asked} | {len(nominated)} | {len(ended)} |", flush=True)
