"""``gpushare gangs``: groups of pods that start together, and what each waits for."""

from contextlib import suppress

import click

from gpushare.answers.gangs import GangList, list_gangs
from gpushare.contract import EXTENDER_PREFIX
from gpushare.errors import ApiError
from gpushare.kube.client import Kube
from gpushare.process.time_slices import run_all
from gpusharectl.gangs.lines import Gangs, draw
from gpusharectl.reach.extender import Extender, all_nodes, all_pods, extender_or_reason
from gpusharectl.reach.listed_cluster import ListedCluster, unit_of
from gpusharectl.reach.listed_gangs import gangs_of
from gpusharectl.reach.namespace import in_namespace, or_in_all
from gpusharectl.reach.options import Target, asks_an_extender
from gpusharectl.reach.rights import Lacking
from gpusharectl.terminal.exits import NOT_REACHED
from gpusharectl.terminal.output import output, show, show_document


@click.command("gangs")
@in_namespace()
@or_in_all()
@output("wide")
@asks_an_extender
async def command(target: Target, namespace: str | None, *, everything: bool, output: str) -> None:
    """Show groups of pods that start together.

    The last column says what each waits for and what would help. The output format "wide" adds
    slots, gated pods, priority and source. The exit code is 3 if some gangs cannot be shown.
    """
    async with target.connect() as kube:
        where = "" if everything else namespace or kube.namespace
        async with extender_or_reason(target, kube) as (extender, why):
            found = await _gangs(kube, extender, why, where)
    if output in {"text", "wide"}:
        show(draw(found, is_wide=output == "wide"))
    else:
        show_document(found, output)
    if not found.complete:
        raise click.exceptions.Exit(NOT_REACHED)


async def _gangs(kube: Kube, extender: Extender | None, why: str, namespace: str) -> Gangs:
    """Return the leader's gangs, else those that the API server's lists show."""
    if extender is not None:
        page = f"{EXTENDER_PREFIX}/gangs" + (f"/{namespace}" if namespace else "")
        try:
            found = extender.decoded(await extender.get(page), GangList)
        except ApiError as err:
            why = str(err)
        else:
            return Gangs(found.gangs, namespace, left_out=found.left_out)
    pods, unit, world = await all_pods(kube, namespace), 0, None
    with suppress(Lacking):
        nodes = await all_nodes(kube)
        unit = unit_of(nodes)
        world = ListedCluster(nodes, await all_pods(kube) if namespace else pods)
    listed = await gangs_of(kube, pods, unit, namespace, world=world)
    gangs = run_all(list_gangs(listed.states))
    only_leader = f"what only the extender knows is not shown (plans, zones): {why}"
    return Gangs(
        gangs.gangs,
        namespace,
        left_out=gangs.left_out,
        from_extender=False,
        complete=not listed.missing,
        not_shown=[only_leader, *listed.missing],
    )
