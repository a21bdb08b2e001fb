"""``gpushare what-if``: would a pod, or so many of it, fit now, and who would have to go."""

from http import HTTPStatus
from typing import IO, Any, Final
from urllib.parse import quote

import click
import msgspec
from rich.text import Text

from gpushare.answers.what_if import MOST_PODS, Answer
from gpushare.errors import UNDECODABLE, ApiError, SettingsError
from gpushare.kube.client import Kube
from gpusharectl.manifests.manifest import wanted
from gpusharectl.reach.options import Target, asks_an_extender
from gpusharectl.reach.questions import Asking
from gpusharectl.terminal.exits import NO
from gpusharectl.terminal.output import document, output, show
from gpusharectl.what_if import lines

MAX_FILE: Final = 4 * 2**20
_CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses/"


class _Class(msgspec.Struct):
    value: int


@click.command("what-if")
@click.option(
    "-f", "--filename", "file", type=click.File("rb"), required=True, metavar="FILE",
    help="A Pod, or a workload that makes pods; - for stdin.",
)  # fmt: skip
@click.option(
    "--count", type=click.IntRange(1, MOST_PODS), help="How many; else as many as the workload has."
)
@output
@asks_an_extender
async def command(target: Target, file: IO[bytes], count: int | None, output: str | None) -> None:
    """Say whether a pod would fit now.

    Nothing is made or reserved. The exit code is 1 where not all of them fit.
    """
    content = file.read(MAX_FILE + 1)
    if len(content) > MAX_FILE:
        raise SettingsError(f"{file.name} has more than {MAX_FILE} bytes: it is no manifest of one")
    found = wanted(content, file.name)
    number = count or found.count
    if number > MOST_PODS:
        raise SettingsError(f"{found.what} makes {number} pods: write --count, {MOST_PODS} at most")
    async with target.connect() as kube, Asking.open(target, kube) as asking:
        pod = await _with_priority(kube, found.pod)
        answer = await asking.what_if(pod, number)
    if output is not None:
        click.echo(document(answer, output), nl=False)
    else:
        for what in found.skipped:
            show([Text(f"{what} makes no pods and is left out", style="dim")])
        show([Text(f"{found.what}, {number} times:" if number > 1 else f"{found.what}:")])
        show(lines.draw(answer))
        if asking.why_not:
            show([Text(f"by the API server's lists alone: {asking.why_not}", style="dim")])
    _leave(answer)


def _leave(answer: Answer) -> None:
    if not answer.fits:
        raise click.exceptions.Exit(NO)


async def _with_priority(kube: Kube, pod: dict[str, Any]) -> dict[str, Any]:
    """The pod with the number that admission would take from its class, where it may be read."""
    spec = pod.get("spec")
    name = spec.get("priorityClassName") if isinstance(spec, dict) else None
    if not isinstance(spec, dict) or not isinstance(name, str) or spec.get("priority") is not None:
        return pod
    try:
        body = await kube.request("GET", _CLASSES + quote(name, safe=""))
        value = msgspec.json.decode(body, type=_Class).value
    except (ApiError, *UNDECODABLE) as err:
        if isinstance(err, ApiError) and err.code == HTTPStatus.NOT_FOUND:
            raise SettingsError(f"there is no priority class {name!r} in the cluster") from err
        return pod  # what-if itself then says what was not looked at
    return {**pod, "spec": {**spec, "priority": value}}
