"""``gpushare what-if``: whether pods would fit now, and which pods to evict for them."""

from dataclasses import replace
from http import HTTPStatus
from typing import IO, Any, Final
from urllib.parse import quote

import click
import msgspec
from rich.text import Text

from gpushare.annotations.mistaken_names import suggestions
from gpushare.answers.what_if import MOST_PODS
from gpushare.cards.placement_policy import NodePolicy
from gpushare.errors import UNDECODABLE, ApiError, RequestError, SettingsError
from gpushare.kube.client import Kube
from gpushare.objects.model import Pod
from gpusharectl.manifests.manifest import Wanted, manifest, placed
from gpusharectl.manifests.resource_rules import refused
from gpusharectl.manifests.yaml_lines import shown_place
from gpusharectl.policies.option import compares_policies
from gpusharectl.reach.extender import extender_or_reason
from gpusharectl.reach.namespace import in_namespace
from gpusharectl.reach.options import Target, asks_an_extender
from gpusharectl.reach.questions import Questions, listed_cluster, read_question
from gpusharectl.terminal.exits import NO, No
from gpusharectl.terminal.output import output, show, show_document
from gpusharectl.terminal.whole_number import WholeNumber
from gpusharectl.what_if import lines
from gpusharectl.what_if.policies import compare, draw
from gpusharectl.what_if.rules import WantedGang, gang_of

MAX_FILE: Final = 4 * 2**20
_CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses/"


class _Class(msgspec.Struct):
    value: int


@click.command("what-if")
@click.option(
    "-f", "--filename", "file", type=click.File("rb"), required=True, metavar="FILE",
    help="A Pod, a workload that creates pods, or those of one gang; - for stdin.",
)  # fmt: skip
@click.option(
    "--count", type=WholeNumber(1, MOST_PODS), help="Number of pods.  [default: the workload's]"
)
@click.option("--evict", is_flag=True, help="Show what would be evicted for pods that do not fit.")
@compares_policies
@in_namespace("Namespace of the pod, if the file names none.")
@output()
@asks_an_extender
async def command(
    target: Target,
    file: IO[bytes],
    count: int | None,
    namespace: str | None,
    output: str,
    *,
    policies: tuple[NodePolicy, ...],
    evict: bool,
) -> None:
    """Check whether a pod would fit now.

    Pods of one gang are checked as a whole; they may be in several documents. Nothing is created,
    reserved or evicted. The exit code is 1 if not all pods fit.
    """
    if policies and evict:
        raise click.UsageError("--policy and --evict: use only one of them")
    read = manifest(_content(file), file.name)
    workloads = tuple(placed(each, namespace) for each in read.workloads)
    gang = gang_of(workloads, read.pod_groups)
    skipped = read.skipped if gang is not None else read.only().skipped
    parts = _counted(workloads, count)
    meant = [text for each in parts for text in _checked(each)]
    if output == "text":
        show(Text(text, style="yellow") for text in meant)
        show(Text(f"{what} creates no pods and is ignored", style="dim") for what in skipped)
    if policies:
        _refuse_gang(gang)
        await _compare(target, parts[0], policies, output)
        return
    async with target.connect() as kube, extender_or_reason(target, kube) as (extender, why_not):
        questions = Questions(kube, extender, why_not)
        pods = [await _with_priority(kube, each.pod) for each in parts]
        if gang is not None:
            gang = replace(gang, parts=parts)
            answer = await questions.gang_what_if(gang.body(pods), evict=evict)
        else:
            answer = await questions.what_if(pods[0], parts[0].count, evict=evict)
    if output == "text":
        show([f"{gang.what if gang is not None else parts[0].counted}:"])
        show(lines.draw(answer, evict=evict))
        if questions.why_not:
            text = f"computed from the API server's lists only: {questions.why_not}"
            show([Text(text, style="dim")])
    else:
        show_document(answer, output)
    if not answer.fits:
        raise click.exceptions.Exit(NO)


def _content(file: IO[bytes]) -> bytes:
    content = file.read(MAX_FILE + 1)
    if len(content) > MAX_FILE:
        raise SettingsError(f"{file.name} is larger than {MAX_FILE} bytes: write one manifest")
    return content


def _refuse_gang(gang: WantedGang | None) -> None:
    if gang is not None:
        raise SettingsError(
            f"{gang.what}: --policy is for pods that are in no gang; gpushare simulate --policy "
            "compares policies for gangs too"
        )


async def _compare(
    target: Target, wanted: Wanted, policies: tuple[NodePolicy, ...], output: str
) -> None:
    async with target.connect() as kube:
        pod = await _with_priority(kube, wanted.pod)
        question, extras = read_question({"pod": pod, "count": wanted.count})
        cluster = await listed_cluster(kube)
    try:
        found = compare(cluster, question, extras, policies)
    except RequestError as err:
        raise No(f"{wanted.what} fits on no node: {err}") from err
    if output == "text":
        show([f"{wanted.counted}:"])
        show(draw(found))
    else:
        show_document(found, output)
    if not found.fits:
        raise click.exceptions.Exit(NO)


def _counted(workloads: tuple[Wanted, ...], count: int | None) -> tuple[Wanted, ...]:
    """Return the workloads with the number that is asked for; SettingsError if that is not one."""
    if count is not None:
        if len(workloads) > 1:
            raise SettingsError("--count is for one workload, and the file has several")
        return (replace(workloads[0], count=count),)
    number = sum(each.count for each in workloads)
    if number > MOST_PODS:
        names = ", ".join(each.what for each in workloads)
        creates = "creates" if len(workloads) == 1 else "create"
        raise SettingsError(f"{names} {creates} {number} pods: write --count, at most {MOST_PODS}")
    return workloads


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
