"""``gpushare migrate``: find what blocks a migration from Aliyun gpushare."""

from collections.abc import Iterator

import click
from rich.text import Text

from gpushare.text.manual import manual
from gpusharectl.migrate.rules import Migration, NodeMigration, Obstacle, migration
from gpusharectl.reach.extender import all_nodes, all_pods
from gpusharectl.reach.options import Target, asks_a_cluster
from gpusharectl.terminal.exits import NO
from gpusharectl.terminal.output import output, show, show_document


@click.command("migrate")
@output()
@asks_a_cluster
async def command(target: Target, output: str) -> None:
    """Find what blocks a migration from Aliyun gpushare.

    Changes nothing, and reads only nodes and pods. The exit code is 1 if something blocks it.
    """
    async with target.connect() as kube:
        found = migration(await all_nodes(kube), await all_pods(kube))
    if output == "text":
        show(lines(found))
    else:
        show_document(found, output)
    if not found.is_free:
        click.get_current_context().exit(NO)


def lines(found: Migration) -> Iterator[Text | str]:
    if not found.nodes:
        yield (
            "No node offers aliyun.com/gpu-mem: there is nothing to migrate. From HAMi, "
            f"time-slicing or MPS: {manual('migrate.md')}"
        )
        return
    for node in found.nodes:
        yield _node_line(node)
        yield from map(_obstacle_line, node.obstacles)
    if found.obstacles:
        yield Text("The cluster", style="bold")
        yield from map(_obstacle_line, found.obstacles)
    yield ""
    if found.memory_unit:
        yield "These settings keep the totals:"
        yield f"  plugin     --memory-unit={found.memory_unit} --reserved={found.reserved}"
        yield f"  extender   memoryUnit: {found.memory_unit}"
        yield ""
    if found.is_default_runtime:
        yield "This one is for pods without a RuntimeClass, which have GPUs here:"
        yield '  component  default-runtime (with Helm, plugin.runtimeClassName: "")'
        yield ""
    yield f"Steps ({manual('migrate.md')}):"
    for number, step in enumerate(found.steps, start=1):
        yield f"  {number}. {step}"
    yield ""
    if found.is_free:
        yield Text("Nothing blocks the migration.", style="green")
    else:
        count = len(found.obstacles) + sum(len(each.obstacles) for each in found.nodes)
        yield Text(f"Blocking: {count}", style="red")


def _node_line(node: NodeMigration) -> Text:
    line = Text(node.node, style="bold")
    whose = "is migrated" if node.plugin == "gpushare" else "has Aliyun gpushare"
    amounts = f"{node.cards} GPUs, {node.units_per_card} {node.unit} each" if node.unit else "?"
    line.append(f"  {whose}: {amounts}, pods: {node.pods}", style="not bold")
    return line


def _obstacle_line(found: Obstacle) -> Text:
    subject = f"pod {found.pod}: " if found.pod else ""
    line = Text("  ! ", style="red")
    line.append(f"{subject}{found.why}. Fix: {found.cure}", style="not red default")
    return line
