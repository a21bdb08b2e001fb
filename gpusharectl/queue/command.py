"""``gpushare queue``: what waits for room, in the order in which it gets room."""

import click

from gpushare.answers.queue.entries import QueueList
from gpusharectl.queue.lines import Queue, draw
from gpusharectl.reach.extender import asked_leader
from gpusharectl.reach.namespace import in_namespace, or_in_all
from gpusharectl.reach.options import Target, asks_an_extender
from gpusharectl.terminal.output import output, show, show_document


@click.command("queue")
@in_namespace()
@or_in_all()
@output("wide")
@asks_an_extender
async def command(target: Target, namespace: str | None, *, everything: bool, output: str) -> None:
    """Show what waits for room, in its order.

    Positions are those in the whole queue. The last column says what each pod or gang waits for.
    The output format "wide" adds pods, their requests, priority and kind.
    """
    async with target.connect() as kube:
        where = "" if everything else namespace or kube.namespace
        page = f"queue/{where}" if where else "queue"
        found = Queue(await asked_leader(target, kube, page, QueueList), where)
    if output in {"text", "wide"}:
        show(draw(found, is_wide=output == "wide"))
    else:
        show_document(found.list, output)
