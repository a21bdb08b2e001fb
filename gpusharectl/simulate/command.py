"""``gpushare simulate``: read files, print the steps, JSON or YAML, or draw an SVG."""

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
from gpusharectl.manifests.yaml_lines import Document, read
from gpusharectl.simulate import examples, svg, view
from gpusharectl.simulate.picture import Painter
from gpusharectl.simulate.run import Run
from gpusharectl.simulate.scenario import build
from gpusharectl.terminal.exits import No
from gpusharectl.terminal.output import document, output, show

STDIN: Final = "-"
NAMED: Final = 10  # pods that are still Pending at the end
_APART: Final = (
    ("--last", "--step"),
    ("-o", "--svg"),
    ("--list-examples", "files"),
    ("--list-examples", "--example"),
    ("--example", "files"),
)
_POLICY: Final = click.Choice(["binpack", "spread"])


@click.command("simulate")
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option(
    "-f", "--file", "more", multiple=True, metavar="FILE", help="Same as FILE; - is stdin."
)
@click.option("--example", metavar="NAME", help="Run a built-in example.")
@click.option("--list-examples", is_flag=True, help="List the built-in examples.")
@click.option("--node-policy", type=_POLICY, default="binpack", show_default=True)
@click.option("--card-policy", type=_POLICY, default="binpack", show_default=True)
@click.option(
    "--memory-unit",
    metavar="UNIT",
    help="The cluster's unit, such as GiB or 256MiB.  [default: that of the first node, or GiB]",
)
@click.option("--last", is_flag=True, help="Show only the last step.")
@click.option("--step", type=click.IntRange(min=1), metavar="N", help="Show only step N.")
@output()
@click.option(
    "--svg",
    "svg_file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Draw one step as SVG; without --step the last.",
)
@click.option("--all-must-run", is_flag=True, help="Exit with 1 if a pod is Pending at the end.")
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
    svg_file: str | None,
    all_must_run: bool,
) -> None:
    """Show where pods would be placed, without a cluster.

    FILE has Kubernetes Nodes and Pods as YAML, with the times at which pods are created (at: 10s)
    and deleted (delete: 1m). A Node may have "cards: 2 x 16" instead of an inventory. The output
    of kubectl get -o yaml works too.
    """
    _refuse_together(
        {
            "--last": last,
            "--step": step,
            "-o": output != "text",
            "--svg": svg_file,
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
    gc.disable()  # much is allocated here and nothing freed: this halves the time
    try:
        scenario = build(_documents((*files, *more), example), unit)
    finally:
        gc.enable()
    if not scenario.nodes and not scenario.pods:
        raise SettingsError("nothing to simulate: no Nodes and Pods found")
    run = Run(scenario, policies)
    if step is not None and step > run.count:
        raise SettingsError(f"--step {step}: the steps are 1 to {run.count}")
    steps = run.steps(run.count if last else step)
    if svg_file is not None:
        last_step = list(steps)[-1]
        _save(svg_file, svg.draw(last_step))
        click.echo(f"{svg_file}: step {last_step.number}")
    elif output == "json":
        _print_json(run.head, steps)
    elif output == "yaml":
        whole = {**msgspec.to_builtins(run.head), "steps": list(steps)}
        click.echo(document(whole, output), nl=False)
    else:
        _print_picture(run.head, steps)
    for _ in steps:
        pass  # simulate the steps after the shown one
    if all_must_run and run.waiting:
        names = ", ".join(pod.key.removeprefix("default/") for pod in run.waiting[:NAMED])
        left = f" and {len(run.waiting) - NAMED} more" if len(run.waiting) > NAMED else ""
        count = f"{len(run.waiting)} pod{'s are' if len(run.waiting) > 1 else ' is'}"
        raise No(f"{count} Pending at the end: {names}{left}")


def _refuse_together(given: Mapping[str, object]) -> None:
    for one, other in _APART:
        if given[one] and given[other]:
            raise click.UsageError(f"{one} and {other}: use only one of them")


def _documents(files: tuple[str, ...], example: str | None) -> Iterator[Document]:
    if example is not None:
        yield from read(f"{example}.yaml", examples.content(example))
        return
    if not files:
        raise click.UsageError("write files with Nodes and Pods, or --example NAME")
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
    colored = console.color_system is not None and not console.no_color
    painter = Painter(console.width, colored=colored)

    def say(line: Text) -> None:
        # Without colors rich would only cost time.
        console.print(line) if colored else show([line.plain], console)

    unit = f"Units of {view.unit_name(head.unit_mib)}; "
    say(Text(f"{unit}nodes by {head.node_policy}, GPUs by {head.card_policy}.\n", "dim"))
    for step in steps:
        for line in painter.draw(step):
            say(line)
        say(Text())
    for text in head.ignored:
        say(Text(f"Ignored: {text}", "dim"))
    say(Text("Not simulated:", "dim"))
    for text in head.not_simulated:
        say(Text(f"  {text}", "dim"))


def _print_json(head: view.Head, steps: Iterator[view.Step]) -> None:
    """Write one object step by step, so that not all steps are in memory."""
    click.echo(msgspec.json.encode(head).removesuffix(b"}") + b',"steps":[', nl=False)
    for place, step in enumerate(steps):
        click.echo((b"\n," if place else b"\n") + msgspec.json.encode(step), nl=False)
    click.echo(b"\n]}")


def _save(file: str, text: str) -> None:
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as err:
        raise SettingsError(f"{file} cannot be written: {err.strerror or err}") from err
