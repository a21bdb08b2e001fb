"""``gpushare doctor``: is a cluster set up right, and what to do where it is not."""

import datetime as dt
from importlib import metadata

import click
from rich.console import Console

from gpushare.clock import SystemClock
from gpusharectl.doctor import show
from gpusharectl.doctor.checks import access, extender, injection, nodes, pods, scheduler
from gpusharectl.doctor.checks.findings import examine
from gpusharectl.doctor.gather import gather
from gpusharectl.reach.options import Target, asks_an_extender, text_or_json
from gpusharectl.terminal.exits import NO

CHECKS = (
    *nodes.CHECKS,
    *injection.CHECKS,
    *extender.CHECKS,
    *scheduler.CHECKS,
    *access.CHECKS,
    *pods.CHECKS,
)


@click.command()
@asks_an_extender
@text_or_json
@click.option(
    "--scheduler-url",
    metavar="URL",
    help="kube-scheduler's https://HOST:10259, in place of a port-forward to its pod.",
)
async def doctor(target: Target, output: str, scheduler_url: str | None) -> None:
    """Say what is not set up right, each with its cure.

    Ends with 0 where nothing was found, 1 where anything was, 3 where nodes and pods cannot be
    listed. What a right was missing for is told as not checked, and changes nothing in that.
    """
    now = dt.datetime.fromtimestamp(SystemClock().wall_ns() / 1e9, dt.UTC)
    version = metadata.version("gpushare")
    async with target.connect() as kube:
        facts = await gather(target, kube, version=version, now=now, scheduler_url=scheduler_url)
    results = examine(facts, CHECKS)
    if output == "json":
        click.echo(show.as_json(results))
    else:
        show.show(results, Console(highlight=False, soft_wrap=False, emoji=False))
    if not show.is_well(results):
        raise click.exceptions.Exit(NO)
