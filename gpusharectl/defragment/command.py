"""``gpushare defragment``: which pods to restart elsewhere so that there is room."""

import click

from gpushare.defragment.budgets import budgets_of
from gpushare.defragment.movable import Rules, movables_of
from gpushare.kube.client import Kube
from gpushare.kube.lists import list_all
from gpushare.kube.paths import disruption_budgets
from gpushare.objects.disruption_budget import DisruptionBudget
from gpushare.objects.model import Pod
from gpushare.process.time_slices import run_all
from gpushare.text.counted import counted
from gpusharectl.defragment.lines import draw
from gpusharectl.defragment.moving import Moving
from gpusharectl.defragment.rules import Goal, goal_of, name_of, plan_of, view
from gpusharectl.reach.completion import complete_pod
from gpusharectl.reach.listed_cluster import ListedCluster
from gpusharectl.reach.listed_gangs import groups_of
from gpusharectl.reach.namespace import in_namespace
from gpusharectl.reach.options import Target, asks_a_cluster
from gpusharectl.reach.questions import nodes_and_pods
from gpusharectl.reach.rights import Right, needing
from gpusharectl.terminal.exits import NO
from gpusharectl.terminal.output import output, show, show_document
from gpusharectl.terminal.renamed import RenamedOption
from gpusharectl.terminal.say import say
from gpusharectl.terminal.whole_number import WholeNumber

MOST_CARDS = 10_000


@click.command("defragment")
@click.option(
    "--for", "wanted", metavar="POD", shell_complete=complete_pod,
    help="Make room for a Pending pod or gang: NAME or NAMESPACE/NAME.",
)  # fmt: skip
@click.option(
    "--free-gpus", "cards", cls=RenamedOption, was="--free-cards",
    type=WholeNumber(1, MOST_CARDS), metavar="N",
    help="Free so many GPUs, in addition to those that are free.",
)  # fmt: skip
@click.option(
    "--below-priority", type=int, metavar="N",
    help="Also move pods of a lower priority that have no label, of ReplicaSets and StatefulSets.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only print the moves. This is the default.")
@click.option("--yes", "-y", is_flag=True, help="Evict the pods, one after the other.")
@in_namespace("Namespace of the Pending pod or gang.")
@output()
@asks_a_cluster
async def command(
    target: Target,
    *,
    wanted: str | None,
    cards: int | None,
    below_priority: int | None,
    namespace: str | None,
    output: str,
    dry_run: bool,
    yes: bool,
) -> None:
    """Show which pods to restart elsewhere so that there is room.

    Either whole GPUs become free, or a Pending pod or gang fits. Pods with the label
    gpushare.aliyun.com/movable=true move: they are evicted, and their controllers replace them.
    Nothing is changed without --yes. The exit code is 1 if there is no such plan.
    """
    if (wanted is None) == (cards is None):
        raise click.UsageError("use either --for or --free-gpus")
    if yes and dry_run:
        raise click.UsageError("--yes: not with --dry-run")
    if yes and output != "text":
        raise click.UsageError("--yes: only with -o text")
    async with target.connect() as kube:
        nodes, pods = await nodes_and_pods(kube)
        world = ListedCluster(nodes, pods)
        goal = Goal(counted(cards or 0, "GPU"), cards or 0)
        if wanted is not None:
            goal = await _waiting(kube, world, pods, *name_of(wanted, namespace or kube.namespace))
        with needing(Right("list", "poddisruptionbudgets.policy")):
            budgets = await list_all(kube, disruption_budgets(), DisruptionBudget)
        rules = Rules(budgets_of(pods, budgets), below_priority)
        movables = run_all(movables_of(world, rules))
        plan = run_all(plan_of(world, goal, movables))
        answer = view(world, goal, plan, movables)
        if output == "text":
            show(draw(answer, is_dry=not yes))
        else:
            show_document(answer, output)
        if not plan.is_enough:
            raise click.exceptions.Exit(NO)
        if yes and plan.moves:
            await Moving(kube, plan, say).run()
            say(f"{counted(len(plan.moves), 'pod')} moved; see `gpushare inspect`")


async def _waiting(
    kube: Kube, world: ListedCluster, pods: list[Pod], namespace: str, name: str
) -> Goal:
    here = [each for each in pods if each.metadata.namespace == namespace]
    groups, missing = await groups_of(kube, here, namespace)
    for text in missing:
        say(text, err=True)
    return goal_of(here, groups, world, namespace, name)
