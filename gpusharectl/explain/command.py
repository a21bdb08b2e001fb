"""``gpushare explain``: why a pod is Pending, or where it is."""

import datetime as dt
from collections.abc import Sequence
from typing import Final

import click
import msgspec

from gpushare.annotations import pod_annotations
from gpushare.annotations.mistaken_names import hint
from gpushare.answers import explain as answers
from gpushare.answers.pending.facts import UNSEEN
from gpushare.answers.pending.of_pod import unseen
from gpushare.answers.pending.text import sentence
from gpushare.contract import ANNOTATION_CARDS, ANNOTATION_RUNNING_ON, RESOURCE_MEMORY
from gpushare.errors import UNDECODABLE, ApiError, NotFound, SettingsError
from gpushare.groups.sources import key_of
from gpushare.kube.client import Kube
from gpushare.kube.paths import pod_path
from gpushare.objects.model import Pod
from gpushare.process.time_slices import run_all
from gpusharectl.explain.lines import Explained, Running, draw
from gpusharectl.reach.completion import complete_pod
from gpusharectl.reach.extender import extender_or_reason
from gpusharectl.reach.listed_cluster import ListedCluster
from gpusharectl.reach.namespace import in_namespace
from gpusharectl.reach.options import Target, asks_an_extender
from gpusharectl.reach.pod_events import Event, events_of_pod, last_sentences
from gpusharectl.reach.questions import Questions
from gpusharectl.reach.rights import Lacking, Right, needing
from gpusharectl.terminal.exits import NO, No
from gpusharectl.terminal.output import output, show, show_document
from gpusharectl.terminal.whole_number import WholeNumber

MOST_NODES: Final = 1000
EVENTS: Final = 3
_HAS_ITS_GPU: Final = frozenset({"bound", "binding"})


@click.command("explain")
@click.argument("words", nargs=-1, required=True, metavar="[pod] NAME", shell_complete=complete_pod)
@in_namespace()
@click.option(
    "--nodes",
    type=WholeNumber(0, MOST_NODES),
    default=answers.NODES_SHOWN,
    show_default=True,
    help="Number of nodes to show, those nearest to fitting first.",
)
@click.option("-v", "--verbose", is_flag=True, help="Show the reason for each node and GPU.")
@output()
@asks_an_extender
async def command(
    target: Target,
    words: tuple[str, ...],
    namespace: str | None,
    nodes: int,
    *,
    verbose: bool,
    output: str,
) -> None:
    """Explain why a pod is Pending, or where it runs.

    Says in one sentence what the pod needs, what is free and what would help. The exit code is 1
    while the pod has no GPU.
    """
    name = _name(words)
    async with target.connect() as kube:
        pod = await _pod(kube, namespace or kube.namespace, name)
        if not pod_annotations.asks_for_share(pod) and key_of(pod) is None:
            text = f"pod {pod.key} does not request {RESOURCE_MEMORY}: gpushare ignores it"
            raise No(text + hint(pod))
        if pod.is_terminal:
            raise No(f"pod {pod.key} has ended ({pod.status.phase}) and no longer uses a GPU")
        async with extender_or_reason(target, kube) as (extender, why_not):
            found = await _explained(Questions(kube, extender, why_not), pod, nodes)
        await _add_events(kube, pod, found)
    if output == "text":
        show(draw(found, dt.datetime.now(dt.UTC), verbose=verbose))
    else:
        show_document(found, output)
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
    raise SettingsError(f"{' '.join(words)!r} is not a pod: write `gpushare explain pod NAME`")


async def _pod(kube: Kube, namespace: str, name: str) -> Pod:
    try:
        with needing(Right("get", "pods", namespace)):
            body = await kube.request("GET", pod_path(namespace, name))
        return msgspec.json.decode(body, type=Pod)
    except NotFound as err:
        raise No(f"pod {namespace}/{name} not found") from err
    except UNDECODABLE as err:
        raise ApiError(f"pod {namespace}/{name} cannot be read: {err}") from err


async def _explained(questions: Questions, pod: Pod, nodes: int) -> Explained:
    only_extender = (
        "what only the extender knows is not shown (kube-scheduler's calls, reservations)"
    )
    not_shown = [f"{only_extender}: {questions.why_not}"] if questions.why_not else []
    is_judged, lacks_rights = True, False
    try:
        view = await questions.explain(pod, nodes)
    except NotFound:
        raise No(f"the extender does not know pod {pod.key}: it is new, or has ended") from None
    except ApiError as err:
        is_judged, lacks_rights = False, isinstance(err, Lacking)
        view = without_nodes(pod)
        asked = f"; no extender was asked: {questions.why_not}" if questions.why_not else ""
        not_shown = [f"nodes and GPUs are not shown: {err}{asked}"]
    outlook, view.outlook = view.outlook, None
    return Explained(
        pod=view,
        from_extender=not questions.why_not and is_judged,
        is_judged=is_judged,
        running=running(pod),
        outlook=outlook if is_judged else None,
        events=[],
        not_shown=not_shown if not pod.node else [],
        lacks_rights=lacks_rights and not pod.node,
    )


def without_nodes(pod: Pod) -> answers.PodView:
    """Return what is known about a pod without any node (pure)."""
    view = run_all(answers.explain(ListedCluster([], [pod]), pod, None, now=0.0))
    if view.pending is not None:
        view.pending, view.unit_mib = unseen(pod), 0
        view.says = sentence(view.pending)
    return view


def running(pod: Pod) -> Running | None:
    """Return what the node's plugin reports about a bound pod (pure).

    Return None for a pod that is not bound, or has no GPU memory.
    """
    if not pod.node or not pod_annotations.asks_for_share(pod):
        return None
    text = pod.annotations.get(ANNOTATION_RUNNING_ON) or "{}"
    try:
        reported = msgspec.json.decode(text, type=dict[str, dict[str, int]])
    except UNDECODABLE:
        return Running([text[:63]], agrees=False)
    cards = sorted({uuid for amounts in reported.values() for uuid in amounts})
    decided = [uuid.strip() for uuid in pod.annotations.get(ANNOTATION_CARDS, "").split(",")]
    return Running(cards, agrees=not any(decided) or cards == sorted(decided))


def add_sentence(found: Explained, pod: Pod, events: Sequence[Event]) -> None:
    """Take the sentence from the pod's last Event if the caller may not read the nodes (pure)."""
    why = found.pod.pending
    if why is not None and why.cause == UNSEEN:
        said = last_sentences(events).get(pod.uid)
        if said is not None:
            found.pod.says, found.said_at = said


async def _add_events(kube: Kube, pod: Pod, found: Explained) -> None:
    """Add gpushare's last Events about the pod, the newest last, or why they are missing."""
    try:
        ours = await events_of_pod(kube, pod.metadata.namespace, pod.uid)
    except ApiError as err:
        found.not_shown.append(f"events are not shown: {err}")
        return
    add_sentence(found, pod, ours)
    found.events = [f"{each.reason}: {each.message}" for each in ours[-EVENTS:]]
