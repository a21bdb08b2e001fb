"""``gpushare explain``: why a pod waits, or where it is."""

import datetime as dt
from typing import Any, Final

import click
import msgspec

from gpushare.annotations import pod_annotations
from gpushare.answers import explain as answers
from gpushare.contract import ANNOTATION_CARDS, ANNOTATION_RUNNING_ON, RESOURCE_MEMORY
from gpushare.errors import UNDECODABLE, ApiError, NotFound, SettingsError
from gpushare.kube.client import Kube
from gpushare.kube.lists import list_all
from gpushare.kube.paths import events, pod_path
from gpushare.objects.model import Pod
from gpusharectl.explain.lines import Explained, Running, draw
from gpusharectl.reach.completion import complete_pod
from gpusharectl.reach.listed_cluster import Seen
from gpusharectl.reach.options import Target, asks_an_extender
from gpusharectl.reach.questions import Asking, ended
from gpusharectl.reach.rights import Right, named
from gpusharectl.terminal.exits import NO, No
from gpusharectl.terminal.output import document, output, show

MOST_NODES: Final = 1000
EVENTS: Final = 3
_HAS_ITS_GPU: Final = frozenset({"bound", "binding"})


class _Event(msgspec.Struct, rename="camel"):
    reason: str = ""
    message: str = ""
    last_timestamp: str | None = None
    event_time: str | None = None

    @property
    def at(self) -> str:
        return self.last_timestamp or self.event_time or ""


@click.command("explain")
@click.argument("words", nargs=-1, required=True, metavar="[pod] NAME", shell_complete=complete_pod)
@click.option("-n", "--namespace", metavar="NAME", help="As kubectl has it.")
@click.option(
    "--nodes",
    type=click.IntRange(0, MOST_NODES),
    default=answers.NODES_SHOWN,
    show_default=True,
    help="How many nodes to show, those that come nearest first.",
)
@output
@asks_an_extender
async def command(
    target: Target, words: tuple[str, ...], namespace: str | None, nodes: int, output: str | None
) -> None:
    """Say why a pod waits, or where it is.

    Node by node and GPU by GPU. The exit code is 1 while the pod has none.
    """
    name = _name(words)
    async with target.connect() as kube:
        body, pod = await _pod(kube, namespace or kube.namespace, name)
        if not pod_annotations.asks_for_share(pod):
            raise No(f"pod {pod.key} asks for no {RESOURCE_MEMORY}: it does not concern gpushare")
        async with Asking.open(target, kube) as asking:
            found = await _explained(kube, asking, body, pod, nodes)
    if output is not None:
        click.echo(document(found, output), nl=False)
    else:
        show(draw(found, dt.datetime.now(dt.UTC)))
    if found.pod.state not in _HAS_ITS_GPU:
        raise click.exceptions.Exit(NO)


def _name(words: tuple[str, ...]) -> str:
    match words:
        case (word,) if "/" not in word:
            return word
        case (word,) if word.partition("/")[0] in {"pod", "pods", "po"}:
            return word.partition("/")[2]
        case ("pod" | "pods" | "po", name) if "/" not in name:
            return name
    raise SettingsError(f"{' '.join(words)!r} names no pod: write `gpushare explain pod NAME`")


async def _pod(kube: Kube, namespace: str, name: str) -> tuple[dict[str, Any], Pod]:
    """The pod as JSON and as read. No where there is none."""
    try:
        text = await kube.request("GET", pod_path(namespace, name))
        return msgspec.json.decode(text, type=dict[str, Any]), msgspec.json.decode(text, type=Pod)
    except NotFound as err:
        raise No(f"there is no pod {namespace}/{name}") from err
    except UNDECODABLE as err:
        raise ApiError(f"pod {namespace}/{name} cannot be read: {err}") from err
    except ApiError as err:
        raise named(err, Right("get", "pods", namespace)) from err


async def _explained(
    kube: Kube, asking: Asking, body: dict[str, Any], pod: Pod, nodes: int
) -> Explained:
    not_shown: list[str] = []
    is_judged = True
    if pod.is_terminal:
        raise No(f"pod {pod.key} has ended ({pod.status.phase}) and holds no GPU any more")
    try:
        view = await asking.explain(pod, nodes)
    except NotFound:
        text = f"the extender does not know pod {pod.key}: it has just come, or has ended"
        raise No(text) from None
    except ApiError as err:
        is_judged = False
        view = alone(pod)
        if not pod.node:
            not_shown.append(f"nodes and GPUs are not shown: {err}")
    if asking.why_not and not pod.node:
        text = "what only an extender knows is not shown (kube-scheduler's questions, reserves)"
        not_shown.insert(0, f"{text}: {asking.why_not}")
    outlook = None
    if view.state == "waiting" and is_judged:
        try:
            outlook = await asking.what_if(body, 1)
        except ApiError as err:
            not_shown.append(f"what would help is not shown: {err}")
    told: list[str] = []
    try:
        told = await _events(kube, pod)
    except ApiError as err:
        lacks = named(err, Right("list", "events", pod.metadata.namespace))
        not_shown.append(f"events are not shown: {lacks}")
    return Explained(
        pod=view,
        from_extender=not asking.why_not and is_judged,
        is_judged=is_judged,
        running=running(pod),
        outlook=outlook,
        events=told,
        not_shown=not_shown,
    )


def alone(pod: Pod) -> answers.PodView:
    """What is known of a pod without any node (pure)."""
    return ended(answers.explain(Seen([], [pod]), pod, None, now=0.0))


def running(pod: Pod) -> Running | None:
    """What the node's plugin says of a bound pod, None of one that is not bound (pure)."""
    if not pod.node:
        return None
    text = pod.annotations.get(ANNOTATION_RUNNING_ON) or "{}"
    try:
        said = msgspec.json.decode(text, type=dict[str, dict[str, int]])
    except UNDECODABLE:
        return Running([text[:63]], agrees=False)
    cards = sorted({uuid for amounts in said.values() for uuid in amounts})
    decided = [uuid.strip() for uuid in pod.annotations.get(ANNOTATION_CARDS, "").split(",")]
    return Running(cards, agrees=not any(decided) or cards == sorted(decided))


async def _events(kube: Kube, pod: Pod) -> list[str]:
    """What gpushare has told the pod, the newest last."""
    found = await list_all(kube, events(pod.metadata.namespace, pod.uid), _Event)
    ours = [each for each in found if each.reason.startswith("Gpushare")]
    ours.sort(key=lambda each: each.at)
    return [f"{each.reason}: {each.message}" for each in ours[-EVENTS:]]
