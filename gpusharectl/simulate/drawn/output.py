"""Write the answer or the steps of a simulation, as text, JSON, YAML or SVG."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.text import Text

from gpushare.contract import RESOURCE_MEMORY
from gpushare.errors import SettingsError
from gpushare.text.printable_json import printable_json
from gpusharectl.simulate import view
from gpusharectl.simulate.drawn import svg
from gpusharectl.simulate.drawn.picture import Painter
from gpusharectl.simulate.gain import sentences
from gpusharectl.simulate.gain.needs import By
from gpusharectl.simulate.gain.steps import Begun
from gpusharectl.terminal.output import printable_line, show, show_document, write
from gpusharectl.terminal.say import say

# For a newcomer who has only the manifest of a pod.
GIVE_GPUS: Final = (
    "State some, for example {kind: Node, metadata: {name: n1}, gpus: 4 x 80}, or add those of a "
    "cluster: kubectl get nodes,pods,namespaces -A -o json | gpushare simulate - FILE"
)


def show_steps(
    begun: Begun, only: int | None, output: str, svg_file: str | None, point: str
) -> None:
    """Write the answer or the steps, and run to the end."""
    steps = begun.run.steps(only)
    if svg_file is not None:
        last_step = list(steps)[-1]
        _save(svg_file, svg.draw(last_step))
        say_notes(begun)
        say(f"{svg_file}: step {last_step.number}")
    elif output == "json":
        _print_json(begun, steps)
    elif output == "yaml":
        whole = {**msgspec.to_builtins(begun.run.head), "steps": list(steps)}
        show_document(whole | msgspec.to_builtins(begun.tail()), output)
    elif begun.today is not None and only is None:
        _print_answer(begun)
    else:
        _print_picture(begun, steps, point)
    for _ in steps:
        pass  # simulate the steps after the shown one


def say_notes(begun: Begun) -> None:
    """Write what a picture leaves out, where it does not mix with output."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if begun.run.head.left_out:
        show([view.left_out(begun.run.head.left_out)], console)
    show([f"Ignored: {text}" for text in begun.run.head.ignored], console)
    show([f"Note: {text}" for text in (begun.today or begun.run).unknown], console)


def _print_answer(begun: Begun) -> None:
    """Write what a cluster would gain, and then what to know about it."""
    tail = begun.tail()
    unread = [Text(f"Note: {text}", "yellow") for text in begun.run.scenario.not_read.lines()]
    remarks = [*unread, *_remarks(begun, tail)]
    if tail.gain is None:
        show([*remarks, _no_gpus(tail)])
        return
    first = "--step 1 draws the nodes as today, --last as shared."
    draws = first if begun.run.count > 1 else "--last draws the nodes."
    show([*sentences.lines(tail.gain), draws, *remarks])


def _no_gpus(tail: view.Tail) -> str:
    return f"No GPUs were found that can be simulated.{'' if tail.unknown else f' {GIVE_GPUS}'}"


def _remarks(begun: Begun, tail: view.Tail) -> Iterator[Text]:
    for text in begun.run.head.ignored:
        yield Text(f"Ignored: {text}", "dim")
    for text in tail.unknown:
        yield Text(f"Note: {text}", "yellow")
    needs = begun.needs
    has_effect = tail.gain is not None and (tail.gain.assumed is not None or needs.by is By.EXAMPLE)
    if (needs.by is not By.EXAMPLE or needs.namespace) and not has_effect:
        options = "--assume-memory, --usage and --namespace"
        yield Text(f"No node offers whole GPUs, without which {options} have no effect.")


def _print_picture(begun: Begun, steps: Iterator[view.Step], point: str) -> None:
    console = Console(highlight=False, soft_wrap=True)
    colored = console.color_system is not None and not console.no_color
    painter = Painter(console.width, colored=colored)

    def say(line: Text) -> None:
        # Without colors rich would only cost time.
        console.print(printable_line(line)) if colored else show([line.plain], console)

    for line in chain(_head(begun.run.head), chain.from_iterable(map(painter.draw, steps))):
        say(line)
    tail = begun.tail()
    for line in _remarks(begun, tail):
        say(line)
    if not begun.run.cluster.sharing():
        say(Text(_no_gpus(tail)))
    for text in sentences.lines(tail.gain) if tail.gain is not None else ():
        say(Text(text))
    if point:
        say(Text(point))


def _head(head: view.Head) -> Iterator[Text]:
    if head.left_out:
        yield Text(view.left_out(head.left_out), "yellow")
    unit = f"One unit of {RESOURCE_MEMORY} is {view.unit_name(head.unit_mib)}; "
    yield Text(f"{unit}nodes by {head.node_policy}, GPUs by {head.card_policy}.", "dim")
    yield Text(f"Never simulated: {', '.join(head.not_simulated)}.\n", "dim")


def _print_json(begun: Begun, steps: Iterator[view.Step]) -> None:
    """Write one object step by step, so that not all steps are in memory."""
    write(printable_json(begun.run.head).removesuffix(b"}") + b',"steps":[')
    for place, step in enumerate(steps):
        write((b"\n," if place else b"\n") + printable_json(step))
    write(b"\n]," + printable_json(begun.tail()).removeprefix(b"{") + b"\n")


def _save(file: str, text: str) -> None:
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as err:
        raise SettingsError(f"{file} cannot be written: {err.strerror or err}") from err
