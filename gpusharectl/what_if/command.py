"""``gpushare what-if``: whether pods would fit now, and which pods to evict for them."""

from http import HTTPStatus
from typing import IO, Any, Final
from urllib.parse import quote

import click
import msgspec
from rich.text import Text

from gpushare.annotations.mistaken_names import suggestions
from gpushare.answers.what_if import MOST_PODS
from gpushare.errors import UNDECODABLE, ApiError, SettingsError
from gpushare.kube.client import Kube
from gpushare.objects.model import Pod
from gpusharectl.manifests.manifest import Wanted, placed, wanted
from gpusharectl.manifests.resource_rules import refused
from gpusharectl.manifests.yaml_lines import shown_place
from gpusharectl.reach.extender import extender_or_reason
from gpusharectl.reach.namespace import in_namespace
from gpusharectl.reach.options import Target, asks_an_extender
from gpusharectl.reach.questions import Questions
from gpusharectl.terminal.exits import NO
from gpusharectl.terminal.output import output, show, show_document
from gpusharectl.what_if import lines

MAX_FILE: Final = 4 * 2**20
_CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses/"


class _Class(msgspec.Struct):
    value: int


@click.command("what-if")
@click.option(
    "-f", "--filename", "file", type=click.File("rb"), required=True, metavar="FILE",
    help="A Pod, or a workload that creates pods; - for stdin.",
)  # fmt: skip
@click.option(
    "--count", type=click.IntRange(1, MOST_PODS), help="Number of pods.  [default: the workload's]"
)
@in_namespace("Namespace of the pod, if the file names none.")
@output()
@asks_an_extender
async def command(
    target: Target, file: IO[bytes], count: int | None, namespace: str | None, output: str
) -> None:
    """Check whether a pod would fit now.

    Nothing is created or reserved. The exit code is 1 if not all pods fit.
    """
    content = file.read(MAX_FILE + 1)
    if len(content) > MAX_FILE:
        raise SettingsError(f"{file.name} is larger than {MAX_FILE} bytes: write one manifest")
    found = placed(wanted(content, file.name), namespace)
    number = count or found.count
    if number > MOST_PODS:
        raise SettingsError(
            f"{found.what} creates {number} pods: write --count, at most {MOST_PODS}"
        )
    meant = _checked(found)
    if output == "text":
        show(Text(text, style="yellow") for text in meant)
    async with target.connect() as kube, extender_or_reason(target, kube) as (extender, why_not):
        pod = await _with_priority(kube, found.pod)
        answer = await Questions(kube, extender, why_not).what_if(pod, number)
    if output == "text":
        for what in found.skipped:
            show([Text(f"{what} creates no pods and is ignored", style="dim")])
        show([f"{found.what}, {number} times:" if number > 1 else f"{found.what}:"])
        show(lines.draw(answer))
        if why_not:
            text = f"computed from the API server's lists only: {why_not}"
            show([Text(text, style="dim")])
    else:
        show_document(answer, output)
    if not answer.fits:
        raise click.exceptions.Exit(NO)


def _checked(found: Wanted) -> tuple[str, ...]:
    """Return what mistyped names were meant to be; SettingsError if Kubernetes refuses the pod."""
    try:
        pod = msgspec.convert(found.pod, Pod)
    except msgspec.ValidationError:
        return ()  # the answer says what is wrong
    for place, text in refused(pod):
        raise SettingsError(f"{found.what}: spec.{shown_place(place)}: {text}")
    return suggestions(pod)


async def _with_priority(kube: Kube, pod: dict[str, Any]) -> dict[str, Any]:
    """Return the pod with the priority of its class, as admission sets it, if it can be read."""
    spec = pod.get("spec")
    name = spec.get("priorityClassName") if isinstance(spec, dict) else None
    if not isinstance(spec, dict) or not isinstance(name, str) or spec.get("priority") is not None:
        return pod
    try:
        body = await kube.request("GET", _CLASSES + quote(name, safe=""))
        value = msgspec.json.decode(body, type=_Class).value
    except (ApiError, *UNDECODABLE) as err:
        if isinstance(err, ApiError) and err.code == HTTPStatus.NOT_FOUND:
            raise SettingsError(f"priority class {name!r} not found in the cluster") from err
        return pod  # the answer lists it under "not checked"
    return {**pod, "spec": {**spec, "priority": value}}
