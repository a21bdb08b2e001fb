"""``gpushare doctor``: check a cluster's setup, and say how to fix it."""

import datetime as dt
from importlib import metadata

import click
from rich.console import Console

from gpushare.clock import SystemClock
from gpusharectl.doctor import show
from gpusharectl.doctor.checks import (
    access,
    extender,
    gates,
    injection,
    installation,
    nodes,
    nvidia,
    packing,
    pods,
    profile_rules,
    quotas,
    scheduler,
    second_scheduler,
)
from gpusharectl.doctor.checks.findings import examine
from gpusharectl.doctor.gather import gather
from gpusharectl.reach.options import Target, asks_an_extender
from gpusharectl.terminal.exits import NO
from gpusharectl.terminal.output import output, show_document

CHECKS = (
    *installation.CHECKS,
    *nodes.CHECKS,
    *nvidia.CHECKS,
    *injection.CHECKS,
    *extender.CHECKS,
    *scheduler.CHECKS,
    *profile_rules.CHECKS,
    *second_scheduler.CHECKS,
    *access.CHECKS,
    *gates.CHECKS,
    *quotas.CHECKS,
    *packing.CHECKS,
    *pods.CHECKS,
)


@click.command()
@asks_an_extender
@output()
@click.option(
    "--scheduler-url",
    metavar="URL",
    help="kube-scheduler's https://HOST:10259, instead of a port-forward to its pod.",
)
async def doctor(target: Target, output: str, scheduler_url: str | None) -> None:
    """Find problems in the cluster's setup, each with its fix.

    The exit code is 0 without findings, 1 with findings, 3 if nodes and pods cannot be listed.
    "Not checked" (for example for lack of a right) does not affect it.
    """
    now = dt.datetime.fromtimestamp(SystemClock().wall_ns() / 1e9, dt.UTC)
    version = metadata.version("gpushare")
    async with target.connect() as kube:
        facts = await gather(target, kube, version=version, now=now, scheduler_url=scheduler_url)
    results = examine(facts, CHECKS)
    if output == "text":
        show.show(results, Console(highlight=False, soft_wrap=False, emoji=False))
    else:
        show_document(show.as_builtins(results), output)
    if not show.is_well(results):
        raise click.exceptions.Exit(NO)
