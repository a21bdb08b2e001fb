"""``gpushare quota``: what namespaces use of their quotas, and what waits."""

import click

from gpushare.answers.queue.quotas import QuotaList
from gpusharectl.quota.lines import Quotas, draw
from gpusharectl.reach.extender import asked_leader
from gpusharectl.reach.namespace import in_namespace, or_in_all
from gpusharectl.reach.options import Target, asks_an_extender
from gpusharectl.terminal.output import output, show, show_document


@click.command("quota")
@in_namespace()
@or_in_all()
@output()
@asks_an_extender
async def command(target: Target, namespace: str | None, *, everything: bool, output: str) -> None:
    """Show what namespaces use of their quotas.

    Pods count until they are gone, and so does what is reserved for them. A limit in parentheses is
    the number in the annotation, if a unit is not 1 GiB.
    """
    async with target.connect() as kube:
        where = "" if everything else namespace or kube.namespace
        page = f"quota/{where}" if where else "quota"
        found = Quotas(await asked_leader(target, kube, page, QuotaList), where)
    if output == "text":
        show(draw(found))
    else:
        show_document(found.list, output)
