"""gpushare simulate: files in, a picture, a page or JSON out."""

import gc
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.text import Text

from gpushare.cards.placement_policy import CardPolicy, NodePolicy
from gpushare.errors import SettingsError
from gpushare.placement.rank import Policies
from gpushare.process.flags import parse_unit
from gpushare.text.counted import counted
from gpusharectl.manifests.yaml_lines import Document, read
from gpusharectl.simulate import drawing, examples, page, view
from gpusharectl.simulate.picture import Painter
from gpusharectl.simulate.run import Run
from gpusharectl.simulate.scenario import build
from gpusharectl.terminal.exits import No
from gpusharectl.terminal.output import show

STDIN: Final = "-"
NAMED: Final = 10  # pods that still wait at the end
_APART: Final = (
    ("--last", "--step"),
    ("-o json", "--html"),
    ("-o json", "--svg"),
    ("--list-examples", "files"),
    ("--list-examples", "--example"),
    ("--example", "files"),
)
_POLICY: Final = click.Choice(["binpack", "spread"])


@click.command("simulate")
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("-f", "--file", "more", multiple=True, metavar="FILE", help="As FILE; - is stdin.")
@click.option("--example", metavar="NAME", help="Run an example that comes with the program.")
@click.option("--list-examples", is_flag=True, help="Say which examples there are.")
@click.option("--node-policy", type=_POLICY, default="binpack", show_default=True)
@click.option("--card-policy", type=_POLICY, default="binpack", show_default=True)
@click.option(
    "--memory-unit",
    metavar="UNIT",
    help="The cluster's unit, as GiB or 256MiB. Without it: that of the first node, or GiB.",
)
@click.option("--last", is_flag=True, help="Show the last step alone.")
@click.option("--step", type=click.IntRange(min=1), metavar="N", help="Show the Nth step alone.")
@click.option("-o", "--output", type=click.Choice(["picture", "json"]), default="picture")
@click.option("--html", type=click.Path(dir_okay=False), metavar="FILE", help="Write a page.")
@click.option("--svg", type=click.Path(dir_okay=False), metavar="FILE", help="Write one step.")
@click.option("--all-must-run", is_flag=True, help="Exit with 1 if a pod waits at the end.")
def simulate(
    files: tuple[str, ...],
    more: tuple[str, ...],
    example: str | None,
    *,
    list_examples: bool,
    node_policy: str,
    card_policy: str,
    memory_unit: str | None,
    last: bool,
    step: int | None,
    output: str,
    html: str | None,
    svg: str | None,
    all_must_run: bool,
) -> None:
    """Show where pods would go, without a cluster.

    FILE has Kubernetes Nodes and Pods as YAML, with the times at which pods come (at: 10s) and go
    (delete: 1m). A Node may say "cards: 2 x 16" instead of an inventory. What kubectl get -o yaml
    prints can be used as it is.
    """
    _refuse_together(
        {
            "--last": last,
            "--step": step,
            "-o json": output == "json",
            "--html": html,
            "--svg": svg,
            "--list-examples": list_examples,
            "--example": example,
            "files": (*files, *more),
        }
    )
    if list_examples:
        for name, title in examples.titles():
            click.echo(f"{name:<16} {title}")
        return
    policies = Policies(NodePolicy(node_policy), CardPolicy(card_policy))
    unit = parse_unit(memory_unit) if memory_unit is not None else None
    gc.disable()  # much is made here and nothing thrown away: this halves the time
    try:
        scenario = build(_documents((*files, *more), example), unit)
    finally:
        gc.enable()
    if not scenario.nodes and not scenario.pods:
        raise SettingsError("nothing to simulate: wanted Nodes and Pods, found none")
    run = Run(scenario, policies)
    if step is not None and step > run.count:
        raise SettingsError(f"--step {step}: the steps are 1 to {run.count}")
    steps = run.steps(run.count if last else step)
    if html is not None or svg is not None:
        _write(run.head, list(steps), html, svg)
    elif output == "json":
        _print_json(run.head, steps)
    else:
        _print_picture(run.head, steps)
    for _ in steps:
        pass  # on to the end, where only an earlier step was shown
    if all_must_run and run.waiting:
        names = ", ".join(pod.key.removeprefix("default/") for pod in run.waiting[:NAMED])
        left = f" and {len(run.waiting) - NAMED} more" if len(run.waiting) > NAMED else ""
        count = f"{len(run.waiting)} pod{'s wait' if len(run.waiting) > 1 else ' waits'}"
        raise No(f"{count} at the end: {names}{left}")


def _refuse_together(given: Mapping[str, object]) -> None:
    for one, other in _APART:
        if given[one] and given[other]:
            raise click.UsageError(f"{one} and {other}: write one of them")


def _documents(files: tuple[str, ...], example: str | None) -> Iterator[Document]:
    if example is not None:
        yield from read(f"{example}.yaml", examples.content(example))
        return
    if not files:
        raise click.UsageError("write the files with Nodes and Pods, or --example NAME")
    for file in files:
        if file == STDIN:
            yield from read("stdin", sys.stdin.buffer.read())
            continue
        try:
            content = Path(file).read_bytes()
        except OSError as err:
            raise SettingsError(f"{file} cannot be read: {err.strerror or err}") from err
        yield from read(file, content)


def _print_picture(head: view.Head, steps: Iterator[view.Step]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    coloured = console.color_system is not None and not console.no_color
    painter = Painter(console.width, coloured=coloured)

    def say(line: Text) -> None:
        # Without colours rich would only cost time.
        console.print(line) if coloured else show([line.plain], console)

    unit = f"Units of {view.unit_name(head.unit_mib)}; "
    say(Text(f"{unit}nodes by {head.node_policy}, cards by {head.card_policy}.\n", "dim"))
    for step in steps:
        for line in painter.draw(step):
            say(line)
        say(Text())
    for text in head.ignored:
        say(Text(f"Not looked at: {text}", "dim"))
    say(Text("Not simulated:", "dim"))
    for text in head.not_simulated:
        say(Text(f"  {text}", "dim"))


def _print_json(head: view.Head, steps: Iterator[view.Step]) -> None:
    """One object, written step by step: of a large cluster it need not be in memory at once."""
    click.echo(msgspec.json.encode(head).removesuffix(b"}") + b',"steps":[', nl=False)
    for place, step in enumerate(steps):
        click.echo((b"\n," if place else b"\n") + msgspec.json.encode(step), nl=False)
    click.echo(b"\n]}")


def _write(head: view.Head, steps: list[view.Step], html: str | None, svg: str | None) -> None:
    if html is not None:
        _save(html, page.draw(head, steps))
        click.echo(f"{html}: {counted(len(steps), 'step')}")
    if svg is not None:
        _save(svg, drawing.draw(steps[-1]))
        click.echo(f"{svg}: step {steps[-1].number}")


def _save(file: str, text: str) -> None:
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as err:
        raise SettingsError(f"{file} cannot be written: {err.strerror or err}") from err
