"""``gpushare simulate``: read files, print, draw or serve the steps."""

import asyncio
import gc
import sys
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final

import click
from click.shell_completion import CompletionItem

from gpushare.cards.placement_policy import CardPolicy, NodePolicy
from gpushare.cards.reserve import Reserve, parse_reserve
from gpushare.errors import SettingsError
from gpushare.objects.model import Pod
from gpushare.placement.rank import Policies
from gpushare.process.flags import parse_unit
from gpushare.text.amounts import MIB_PER_GIB
from gpushare.text.listed import listed
from gpusharectl.manifests.workloads import KINDS
from gpusharectl.manifests.yaml_lines import Document, read
from gpusharectl.policies.option import NODE_POLICY, compares_policies
from gpusharectl.reach.namespace import in_namespace
from gpusharectl.simulate import examples, view
from gpusharectl.simulate.comparison.lines import draw
from gpusharectl.simulate.comparison.runs import compare
from gpusharectl.simulate.drawn.output import GIVE_GPUS, say_notes, show_steps
from gpusharectl.simulate.gain import usage as gain_usage
from gpusharectl.simulate.gain.needs import NOTEBOOK_MIB, By, Needs
from gpusharectl.simulate.gain.steps import Begun, begin, placed_again
from gpusharectl.simulate.scenario import Scenario, build
from gpusharectl.terminal.exits import No
from gpusharectl.terminal.output import output, show, show_document
from gpusharectl.terminal.page_options import browse_option, port_option
from gpusharectl.terminal.renamed import RenamedOption
from gpusharectl.terminal.say import say
from gpusharectl.terminal.whole_number import WholeNumber

STDIN: Final = "-"
NAMED: Final = 10  # pods that are still Pending at the end
_APART: Final = (
    ("--last", "--step"),
    ("-o", "--svg"),
    ("-o", "--serve"),
    ("--svg", "--serve"),
    ("--all-must-run", "--serve"),
    *(("--policy", each) for each in ("--node-policy", "--last", "--step", "--svg", "--serve")),
    *(("--policy", each) for each in ("--all-must-run", "--list-examples")),
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
@click.option("--step", type=WholeNumber(min=1), metavar="N", help="Show only step N.")
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
    type=WholeNumber(1, 10_000),
    metavar="GIB",
    help="Memory of each GPU that pods with whole GPUs are assumed to need, for the gain.",
)
@click.option(
    "--usage",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help=f"Measured memory of these pods instead: Prometheus' JSON of {gain_usage.QUERY}.",
)
@click.option(
    "--notebook",
    type=WholeNumber(1, 10_000),
    metavar="GIB",
    default=NOTEBOOK_MIB // MIB_PER_GIB,
    show_default=True,
    help="The size of the notebooks that are counted as gain.",
)
@in_namespace("Count only this namespace's pods with whole GPUs for the gain.")
@click.option("--serve", is_flag=True, help="Play the steps on the live page, in the browser.")
@port_option
@browse_option
@click.option(
    "--all-must-run",
    is_flag=True,
    help="Exit with 1 if a pod is Pending at the end or evicted for good, with 2 if that cannot be "
    "simulated.",
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
    usage: str | None,
    notebook: int,
    namespace: str | None,
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
    needs = _needs(assume_memory, usage, namespace, notebook)
    _require_namespace(scenario, needs.namespace)
    used = Policies(NodePolicy(node_policy or NodePolicy.BINPACK), card)
    if policies:
        if needs.by is not By.EXAMPLE:
            scenario = placed_again(scenario, used, needs)
        _compare(scenario, policies, card, output)
        return
    begun = begin(scenario, used, needs)
    if step is not None and step > begun.run.count:
        raise SettingsError(f"--step {step}: the steps are 1 to {begun.run.count}")
    only = begun.run.count if last else step
    if serve:
        _serve(begun, port, browse=browse, step=only)
        return
    show_steps(begun, only, output, svg_file, examples.point(example) if example else "")
    if all_must_run:
        is_guess = begun.today is not None and needs.by is By.EXAMPLE
        ended = begun.today if is_guess and begun.today is not None else begun.run
        _require_running([*ended.waiting, *scenario.not_tried], ended.lost)
        if texts := list(ended.undecided()):
            raise SettingsError(f"--all-must-run: {view.left_out(texts)}")


def _needs(assumed: int | None, usage: str | None, namespace: str | None, notebook: int) -> Needs:
    return Needs(
        assumed * MIB_PER_GIB if assumed is not None else None,
        gain_usage.read(usage, _content(usage)) if usage is not None else None,
        namespace or "",
        notebook * MIB_PER_GIB,
    )


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
    if not scenario.nodes:
        unread = "".join(f"{text}. " for text in scenario.not_read.lines())
        raise SettingsError(f"the files have no Nodes. {unread}{GIVE_GPUS}")
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
        assume = "Add --assume-memory GIB to compare as if pods with whole GPUs requested it"
        hint = assume if any(each.gpus for each in scenario.nodes) else GIVE_GPUS
        raise SettingsError(f"no node shares its GPUs by memory. {hint}")
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
    names = listed([pod.key.removeprefix("default/") for pod in pods], NAMED)
    return f"{len(pods)} pod{'s are' if len(pods) > 1 else ' is'} {state}: {names}"


def _require_namespace(scenario: Scenario, name: str) -> None:
    """Reject a namespace without pods: it is mistyped, or not in the files."""
    names = {event.pod.metadata.namespace for event in scenario.pods}
    if name and name not in names:
        near = get_close_matches(name, names, 1)
        meant = f": did you mean {near[0]}?" if near else ""
        raise SettingsError(f"the files have no pods in namespace {name}{meant}")


def _serve(begun: Begun, port: int, *, browse: bool, step: int | None) -> None:
    # Most runs serve nothing, and importing an HTTP server takes longer than they do.
    from gpusharectl.simulate.replay import server, steps  # noqa: PLC0415

    run = begun.run
    for _ in run.steps(run.count):
        pass  # only the whole run knows all notes
    say_notes(begun)
    replay = steps.Replay(run.scenario, run.policies, run.head.left_out, begun.headlines())
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
            content = sys.stdin.buffer.read()
            if not content.strip():
                raise SettingsError("stdin is empty: did the command before `|` fail?")
            yield from read("stdin", content)
            continue
        found = list(read(file, _content(file)))
        if not found:
            raise SettingsError(f"{file} has no objects: write Nodes, Pods or workloads")
        if gain_usage.is_answer(found[0].value):
            raise SettingsError(f"{file} is an answer of Prometheus: write --usage {file}")
        yield from found


def _content(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as err:
        raise SettingsError(f"{file} cannot be read: {err.strerror or err}") from err
