"""``gpushare simulate``: read files, print, draw or serve the steps."""

import asyncio
import gc
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

import click
import msgspec
from click.shell_completion import CompletionItem
from rich.console import Console
from rich.text import Text

from gpushare.cards.placement_policy import CardPolicy, NodePolicy
from gpushare.cards.reserve import Reserve, parse_reserve
from gpushare.contract import RESOURCE_MEMORY
from gpushare.errors import SettingsError
from gpushare.objects.model import Pod
from gpushare.placement.rank import Policies
from gpushare.process.flags import parse_unit
from gpushare.text.printable_json import printable_json
from gpusharectl.manifests.workloads import KINDS
from gpusharectl.manifests.yaml_lines import Document, read
from gpusharectl.policies.option import NODE_POLICY, compares_policies
from gpusharectl.simulate import examples, svg, view
from gpusharectl.simulate.comparison.lines import draw
from gpusharectl.simulate.comparison.runs import compare
from gpusharectl.simulate.gain import lines
from gpusharectl.simulate.picture import Painter
from gpusharectl.simulate.run import Run
from gpusharectl.simulate.scenario import Scenario, build
from gpusharectl.terminal.exits import No
from gpusharectl.terminal.output import output, printable_line, show, show_document, write
from gpusharectl.terminal.page_options import browse_option, port_option
from gpusharectl.terminal.renamed import RenamedOption
from gpusharectl.terminal.say import say

STDIN: Final = "-"
# What a newcomer lacks who has only the manifest of a pod.
_GIVE_GPUS: Final = (
    "State some, for example {kind: Node, metadata: {name: n1}, gpus: 4 x 80}, or add those of a "
    "cluster: kubectl get nodes,pods -A -o json | gpushare simulate - FILE"
)
NAMED: Final = 10  # pods that are still Pending at the end
_APART: Final = (
    ("--last", "--step"),
    ("-o", "--svg"),
    ("-o", "--serve"),
    ("--svg", "--serve"),
    ("--all-must-run", "--serve"),
    ("--assume-memory", "--serve"),
    ("--assume-memory", "--svg"),
    *(("--policy", each) for each in ("--node-policy", "--last", "--step", "--svg", "--serve")),
    *(("--policy", each) for each in ("--assume-memory", "--all-must-run", "--list-examples")),
    ("--list-examples", "files"),
    ("--list-examples", "--example"),
    ("--example", "files"),
)


def _examples(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    named = examples.titles()
    return [CompletionItem(name, help=title) for name, title in named if name.startswith(begun)]


@click.command("simulate")
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option(
    "-f", "--file", "more", multiple=True, metavar="FILE", help="Same as FILE; - is stdin."
)
@click.option("--example", metavar="NAME", shell_complete=_examples, help="Run a built-in example.")
@click.option("--list-examples", is_flag=True, help="List the built-in examples.")
@compares_policies
@click.option("--node-policy", type=NODE_POLICY, help="[default: binpack]")
@click.option(
    "--gpu-policy",
    "card_policy",
    cls=RenamedOption,
    was="--card-policy",
    type=click.Choice([each.value for each in CardPolicy]),
    default="binpack",
    show_default=True,
)
@click.option(
    "--memory-unit",
    metavar="UNIT",
    help="The cluster's unit, such as GiB or 256MiB.  [default: that of the first node, or GiB]",
)
@click.option(
    "--reserve",
    metavar="AMOUNT",
    default="0",
    help="What each GPU that is not shared yet will keep unshared, such as 512Mi or 3%.",
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
@click.option(
    "--assume-memory",
    type=click.IntRange(1, 10_000),
    metavar="GIB",
    help="What pods with whole GPUs are assumed to need of each GPU, for the gain.",
)
@click.option("--serve", is_flag=True, help="Play the steps on the live page, in the browser.")
@port_option
@browse_option
@click.option(
    "--all-must-run",
    is_flag=True,
    help="Exit with 1 if a pod is Pending at the end, with 2 if a workload cannot be simulated.",
)
def simulate(
    files: tuple[str, ...],
    more: tuple[str, ...],
    example: str | None,
    *,
    list_examples: bool,
    policies: tuple[NodePolicy, ...],
    node_policy: str | None,
    card_policy: str,
    memory_unit: str | None,
    reserve: str,
    last: bool,
    step: int | None,
    output: str,
    svg_file: str | None,
    assume_memory: int | None,
    serve: bool,
    port: int,
    browse: bool,
    all_must_run: bool,
) -> None:
    """Show where pods would be placed, without a cluster.

    FILE has Kubernetes Nodes and Pods as YAML, with the times at which pods are created (at: 10s)
    and deleted (delete: 1m). A Node may have "gpus: 2 x 16" instead of an inventory. The output
    of kubectl get -o yaml works too.
    """
    _refuse_together(
        {
            "--policy": policies,
            "--node-policy": node_policy,
            "--last": last,
            "--step": step,
            "-o": output != "text",
            "--svg": svg_file,
            "--serve": serve,
            "--assume-memory": assume_memory is not None,
            "--all-must-run": all_must_run,
            "--list-examples": list_examples,
            "--example": example,
            "files": (*files, *more),
        }
    )
    if list_examples:
        say("\n".join(f"{name:<16} {title}" for name, title in examples.titles()))
        return
    card = CardPolicy(card_policy)
    unit = parse_unit(memory_unit) if memory_unit is not None else None
    documents, kept = _documents((*files, *more), example), parse_reserve(reserve)
    scenario = _scenario(documents, unit, kept, places_again=bool(policies), reads_all=all_must_run)
    if policies:
        _compare(scenario, policies, card, output)
        return
    run = Run(scenario, Policies(NodePolicy(node_policy or NodePolicy.BINPACK), card))
    if step is not None and step > run.count:
        raise SettingsError(f"--step {step}: the steps are 1 to {run.count}")
    only = run.count if last else step
    if serve:
        _serve(run, port, browse=browse, step=only)
        return
    steps = run.steps(only)
    if svg_file is not None:
        last_step = list(steps)[-1]
        _save(svg_file, svg.draw(last_step))
        _say_notes(run)
        say(f"{svg_file}: step {last_step.number}")
    elif output == "json":
        _print_json(run, steps, assume_memory)
    elif output == "yaml":
        whole = {**msgspec.to_builtins(run.head), "steps": list(steps)}
        whole |= msgspec.to_builtins(run.tail(assume_memory))
        show_document(whole, output)
    else:
        _print_picture(run, steps, assume_memory, examples.point(example) if example else "")
    for _ in steps:
        pass  # simulate the steps after the shown one
    if all_must_run:
        _require_running([*run.waiting, *scenario.not_tried], run.lost)


def _scenario(
    documents: Iterator[Document],
    unit_mib: int | None,
    reserve: Reserve,
    *,
    places_again: bool,
    reads_all: bool,
) -> Scenario:
    gc.disable()  # much is allocated here and nothing freed: this halves the time
    try:
        scenario = build(documents, unit_mib, reserve=reserve, places_again=places_again)
    finally:
        gc.enable()
    if not scenario.nodes and not scenario.pods:
        unread = "".join(f". {text}" for text in scenario.not_read.lines())
        raise SettingsError(f"nothing to simulate: no Nodes and Pods found{unread}")
    if reads_all:
        _require_read(scenario)
    return scenario


def _require_read(scenario: Scenario) -> None:
    """Refuse files with workloads that are not simulated, and files without anything that is."""
    if texts := list(scenario.not_read.lines()):
        raise SettingsError(f"--all-must-run: {'; '.join(texts)}")
    for file, kinds in scenario.without_effect.items():
        raise SettingsError(
            f"--all-must-run: nothing in {file} is simulated: it has only {', '.join(kinds)}. "
            f"Write Pods, or workloads of these kinds: {', '.join(KINDS)}"
        )


def _compare(
    scenario: Scenario, policies: Sequence[NodePolicy], card: CardPolicy, output: str
) -> None:
    found = compare(scenario, policies, card)
    if not any(each.left.units for moment in found.moments for each in moment.policies):
        raise SettingsError(f"no node shares its GPUs by memory. {_GIVE_GPUS}")
    if output == "text":
        show(draw(found))
    else:
        show_document(found, output)


def _require_running(pending: Sequence[Pod], lost: Sequence[Pod]) -> None:
    found = [_counted(pending, "Pending at the end"), _counted(lost, "evicted for good")]
    if said := "; ".join(filter(None, found)):
        raise No(said)


def _counted(pods: Sequence[Pod], state: str) -> str:
    if not pods:
        return ""
    names = view.listed([pod.key.removeprefix("default/") for pod in pods], NAMED)
    return f"{len(pods)} pod{'s are' if len(pods) > 1 else ' is'} {state}: {names}"


def _say_notes(run: Run) -> None:
    """Write what a picture leaves out, where it does not mix with output."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if run.head.left_out:
        show([view.left_out(run.head.left_out)], console)
    show([f"Ignored: {text}" for text in run.head.ignored], console)
    show([f"Note: {text}" for text in run.tail(None).unknown], console)


def _serve(run: Run, port: int, *, browse: bool, step: int | None) -> None:
    # Most runs serve nothing, and importing an HTTP server takes longer than they do.
    from gpusharectl.simulate.replay import server, steps  # noqa: PLC0415

    for _ in run.steps(run.count):
        pass  # only the whole run knows all notes
    _say_notes(run)
    replay = steps.Replay(run.scenario, run.policies)
    asyncio.run(server.serve(replay, port, browse=browse, step=step))


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


def _print_picture(
    run: Run, steps: Iterator[view.Step], assumed_gib: int | None, point: str
) -> None:
    console = Console(highlight=False, soft_wrap=True)
    colored = console.color_system is not None and not console.no_color
    painter = Painter(console.width, colored=colored)

    def say(line: Text) -> None:
        # Without colors rich would only cost time.
        console.print(printable_line(line)) if colored else show([line.plain], console)

    for line in chain(_head(run.head), chain.from_iterable(map(painter.draw, steps))):
        say(line)
    tail = run.tail(assumed_gib)
    for text in run.head.ignored:
        say(Text(f"Ignored: {text}", "dim"))
    for text in tail.unknown:
        say(Text(f"Note: {text}", "yellow"))
    if not run.cluster.sharing():
        hint = "" if tail.unknown else f" {_GIVE_GPUS}"
        say(Text(f"No GPUs were found that can be simulated.{hint}"))
    for text in lines(tail.gain) if tail.gain is not None else ():
        say(Text(text))
    if assumed_gib is not None and (tail.gain is None or tail.gain.assumed is None):
        say(Text("--assume-memory has no effect: no node offers whole GPUs."))
    if point:
        say(Text(point))


def _head(head: view.Head) -> Iterator[Text]:
    if head.left_out:
        yield Text(view.left_out(head.left_out), "yellow")
    unit = f"One unit of {RESOURCE_MEMORY} is {view.unit_name(head.unit_mib)}; "
    yield Text(f"{unit}nodes by {head.node_policy}, GPUs by {head.card_policy}.", "dim")
    yield Text(f"Never simulated: {', '.join(head.not_simulated)}.\n", "dim")


def _print_json(run: Run, steps: Iterator[view.Step], assumed_gib: int | None) -> None:
    """Write one object step by step, so that not all steps are in memory."""
    write(printable_json(run.head).removesuffix(b"}") + b',"steps":[')
    for place, step in enumerate(steps):
        write((b"\n," if place else b"\n") + printable_json(step))
    write(b"\n]," + printable_json(run.tail(assumed_gib)).removeprefix(b"{") + b"\n")


def _save(file: str, text: str) -> None:
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as err:
        raise SettingsError(f"{file} cannot be written: {err.strerror or err}") from err
