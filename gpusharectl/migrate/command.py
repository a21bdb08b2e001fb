"""``gpushare migrate --check``: what stands in the way of coming over from the older plugin."""

from collections.abc import Iterator

import click
from rich.text import Text

from gpusharectl.migrate.rules import Migration, Obstacle, Standing, migration
from gpusharectl.reach.extender import all_nodes, all_pods
from gpusharectl.reach.options import Target, asks_a_cluster
from gpusharectl.terminal.exits import NO
from gpusharectl.terminal.output import document, output, show


@click.command("migrate")
@click.option("--check", is_flag=True, required=True, help="Look, and change nothing.")
@output
@asks_a_cluster
async def command(target: Target, check: bool, output: str | None) -> None:  # noqa: ARG001 - it must be said
    """Say what hinders coming over from the older gpushare.

    Reads nodes and pods alone. Ends with 1 where something stands in the way. The steps are in
    docs/migrate.md.
    """
    async with target.connect() as kube:
        found = migration(await all_nodes(kube), await all_pods(kube))
    if output:
        click.echo(document(found, output), nl=False)
    else:
        show(lines(found))
    if not found.is_free:
        click.get_current_context().exit(NO)


def lines(found: Migration) -> Iterator[Text | str]:
    """What a person reads."""
    if not found.nodes:
        yield "No node offers aliyun.com/gpu-mem: there is nothing to come over."
        return
    for node in found.nodes:
        yield _node_line(node)
        yield from map(_obstacle_line, node.obstacles)
    if found.obstacles:
        yield Text("The cluster", style="bold")
        yield from map(_obstacle_line, found.obstacles)
    yield ""
    if found.memory_unit:
        yield "The same totals come from these settings:"
        yield f"  plugin     --memory-unit={found.memory_unit} --reserved={found.reserved}"
        yield f"  extender   memoryUnit: {found.memory_unit}"
        yield ""
    yield "In this order (docs/migrate.md):"
    for number, step in enumerate(found.steps, start=1):
        yield f"  {number}. {step}"
    yield ""
    if found.is_free:
        yield Text("Nothing stands in the way.", style="green")
    else:
        count = len(found.obstacles) + sum(len(each.obstacles) for each in found.nodes)
        yield Text(f"In the way: {count}", style="red")


def _node_line(node: Standing) -> Text:
    line = Text(node.node, style="bold")
    whose = "has come over" if node.plugin == "gpushare" else "has the older plugin"
    amounts = f"{node.cards} cards, {node.units_per_card} {node.unit} each" if node.unit else "?"
    line.append(f"  {whose}: {amounts}, pods: {node.pods}", style="not bold")
    return line


def _obstacle_line(found: Obstacle) -> Text:
    subject = f"pod {found.pod}: " if found.pod else ""
    line = Text("  ! ", style="red")
    line.append(f"{subject}{found.why}. To do: {found.cure}", style="not red default")
    return line
