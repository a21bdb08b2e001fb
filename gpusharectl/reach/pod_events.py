"""Read gpushare's Events about pods."""

import datetime as dt
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from gpushare.kube.client import Kube
from gpushare.kube.lists import list_all
from gpushare.kube.paths import events
from gpushare.text.durations import ago
from gpusharectl.reach.rights import Right, needing

WAITING: Final = "GpushareWaiting"  # the Event with the sentence about a Pending pod


class Involved(msgspec.Struct):
    """The object that an Event is about."""

    uid: str = ""


class Event(msgspec.Struct, rename="camel"):
    reason: str = ""
    message: str = ""
    involved_object: Involved = msgspec.field(default_factory=Involved)
    last_timestamp: str | None = None
    event_time: str | None = None

    @property
    def at(self) -> str:
        return self.last_timestamp or self.event_time or ""


class Said(NamedTuple):
    """Why a pod was Pending ``at`` a time of the API server, which is empty if it is not known."""

    text: str
    at: str

    def shown(self, now: dt.datetime) -> str:
        """Return the sentence with its age."""
        past = ago(self.at, now)
        return f"{self.text} ({past})" if past else self.text


async def events_of_pod(kube: Kube, namespace: str, uid: str) -> list[Event]:
    """List gpushare's Events about a pod, the newest last.

    Raises ApiError, which names a missing right.
    """
    return await _ours(kube, namespace, f"involvedObject.uid={uid}")


async def sentences(kube: Kube, namespace: str) -> dict[str, Said]:
    """Return the last sentence about each Pending pod, by uid. Raises ApiError."""
    return last_sentences(await _ours(kube, namespace, f"reason={WAITING}"))


def last_sentences(found: Iterable[Event]) -> dict[str, Said]:
    """Return the last sentence about each pod, by uid (pure); the newest Event is the last."""
    return {
        each.involved_object.uid: Said(each.message.removeprefix("Pending: "), each.at)
        for each in found
        if each.reason == WAITING
    }


async def _ours(kube: Kube, namespace: str, selector: str) -> list[Event]:
    with needing(Right("list", "events", namespace)):
        listed = await list_all(kube, events(namespace, selector), Event)
    ours = [each for each in listed if each.reason.startswith("Gpushare")]
    return sorted(ours, key=lambda each: each.at)
