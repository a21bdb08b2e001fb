"""Pending pods: what each requests, since when it waits, and why (pure)."""

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from gpushare.annotations import pod_annotations
from gpushare.answers.pending.facts import UNSEEN
from gpushare.answers.pending.of_pod import unseen
from gpushare.answers.pending.sentences import Sentences
from gpushare.answers.pending.text import joined, sentence
from gpushare.answers.pending.why import Known
from gpushare.errors import RequestError
from gpushare.objects.model import Pod
from gpushare.process.time_slices import run_all
from gpushare.text.durations import short
from gpusharectl.reach.pod_events import Said

MOST_SENTENCES: Final = 200  # different ones: up to 70 ms each for 1,000 nodes


class WaitingPod(msgspec.Struct):
    """A Pending pod. ``created`` is the API server's time of its creation.

    ``units`` are of all ``cards`` together, 0 if the request cannot be read. ``why`` is explain's
    sentence; it continues ``POD is Pending:``. ``said_at`` is the time of the Event that it is
    from; empty if it is as of now. ``gang`` is that of the pod, and ``own`` what the sentence adds
    to that of the gang.
    """

    namespace: str
    name: str
    created: str
    units: int
    cards: int
    why: str
    said_at: str = msgspec.field(name="saidAt", default="")
    gang: str = ""
    own: str = ""


class Why(NamedTuple):
    """The last fields of a WaitingPod."""

    text: str
    said_at: str = ""
    gang: str = ""
    own: str = ""


def waiting_pods(pods: Iterable[Pod], why: Callable[[Pod], Why]) -> list[WaitingPod]:
    """Return the pods in the order of their creation."""
    in_order = sorted(pods, key=lambda pod: (pod.metadata.creation_timestamp or "", pod.key))
    return [_waiting(pod, why(pod)) for pod in in_order]


def with_nodes(known: Known, most: int) -> Callable[[Pod], Why]:
    """Return what gives each pod its sentence, at most so many different ones."""
    sentences = Sentences(known)

    def why(pod: Pod) -> Why:
        view, meta = known.gangs.view_of(pod.uid), pod.metadata
        gang = view.name if view is not None else ""
        if sentences.written >= most and not sentences.has(pod):
            text = f"see `gpushare explain pod {meta.name} -n {meta.namespace}`"
            return Why(text, gang=gang)
        found = run_all(sentences.parts(pod))
        return Why(joined(gang, found), gang=gang, own=found.own if gang else "")

    return why


def without_others(unit_mib: int, said: Mapping[str, Said]) -> Callable[[Pod], Why]:
    """Return what gives each pod a sentence although the nodes or other pods are not known.

    It is what Events ``said`` by the pod's uid, else what is known of the pod by itself. The unit
    is 0 without nodes.
    """

    def why(pod: Pod) -> Why:
        found = unseen(pod, unit_mib)
        told = said.get(pod.uid) if found.cause == UNSEEN else None
        return Why(sentence(found)) if told is None else Why(told.text, told.at)

    return why


def age(created: str, now: dt.datetime) -> str:
    """Return for how long a pod has waited; ``?`` if its creation is unknown."""
    try:
        return short((now - dt.datetime.fromisoformat(created)).total_seconds())
    except (ValueError, TypeError):  # TypeError: without a time zone
        return "?"


def _waiting(pod: Pod, why: Why) -> WaitingPod:
    meta = pod.metadata
    found = WaitingPod(meta.namespace, meta.name, meta.creation_timestamp or "", 0, 0, *why)
    try:
        request = pod_annotations.request_of(pod)
    except RequestError:
        return found  # ``why`` has the error
    found.units, found.cards = request.units, request.card_count
    return found
