"""An extender that records every call of kube-scheduler and answers as it is told."""

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from aiohttp import web

from bench.apiserver import PODS, ApiServer
from bench.scheduler import RECORDING_PORT, RECORDING_PREFIX


class Answer(msgspec.Struct):
    """kube-scheduler's ExtenderFilterResult."""

    names: Sequence[str] = msgspec.field(name="NodeNames", default=())
    failed: Mapping[str, str] = msgspec.field(name="FailedNodes", default_factory=dict)
    unresolvable: Mapping[str, str] = msgspec.field(
        name="FailedAndUnresolvableNodes", default_factory=dict
    )
    error: str = msgspec.field(name="Error", default="")


class _Meta(msgspec.Struct):
    name: str


class _Pod(msgspec.Struct):
    metadata: _Meta


class _Filter(msgspec.Struct):
    pod: _Pod = msgspec.field(name="Pod")
    names: list[str] = msgspec.field(name="NodeNames")


class _Preempt(msgspec.Struct):
    pod: _Pod = msgspec.field(name="Pod")
    victims: dict[str, Any] = msgspec.field(name="NodeNameToMetaVictims")


class _Binding(msgspec.Struct):
    name: str = msgspec.field(name="PodName")
    node: str = msgspec.field(name="Node")


_filter = msgspec.json.Decoder(_Filter).decode
_preempt = msgspec.json.Decoder(_Preempt).decode
_binding = msgspec.json.Decoder(_Binding).decode

Decide = Callable[[Sequence[str]], Answer]
Narrow = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Call:
    """One call; ``began`` and ``seconds`` are of the extender's own work, on perf_counter.

    ``nodes`` are the names that kube-scheduler sent.
    """

    verb: str
    pod: str
    began: float
    seconds: float
    nodes: tuple[str, ...] = ()


def offer_all(asked: Sequence[str]) -> Answer:
    return Answer(asked)


def veto(_: Mapping[str, Any]) -> Mapping[str, Any]:
    return {}


@dataclass
class Recording:
    """``decide`` makes the answers of filter, ``narrow`` those of preempt; both may be replaced."""

    api: ApiServer
    decide: Decide = offer_all
    narrow: Narrow = veto
    calls: list[Call] = field(default_factory=list)
    keep_nodes: bool = True

    def of(self, verb: str, pod: str = "") -> list[Call]:
        """Return the calls of a verb, of one pod or of all."""
        return [each for each in self.calls if each.verb == verb and pod in {"", each.pod}]

    async def filter(self, request: web.Request) -> web.Response:
        body = await request.read()
        began = time.perf_counter()
        found = _filter(body)
        response = _response(self.decide(found.names))
        self._record("filter", found.pod, began, found.names)
        return response

    async def preempt(self, request: web.Request) -> web.Response:
        body = await request.read()
        began = time.perf_counter()
        found = _preempt(body)
        response = _response(self.narrow(found.victims))
        self._record("preempt", found.pod, began, list(found.victims))
        return response

    async def bind(self, request: web.Request) -> web.Response:
        asked = _binding(await request.read())
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": asked.name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": asked.node},
        }
        await self.api.request("POST", f"{PODS}/{asked.name}/binding", body)
        return _response({"Error": ""})

    def _record(self, verb: str, pod: _Pod, began: float, nodes: Sequence[str]) -> None:
        seconds = time.perf_counter() - began
        kept = tuple(nodes) if self.keep_nodes else ()
        self.calls.append(Call(verb, pod.metadata.name, began, seconds, kept))


def _response(found: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(found), content_type="application/json")


_VERBS: Final = ("filter", "preempt", "bind")


@asynccontextmanager
async def recording(api: ApiServer) -> AsyncIterator[Recording]:
    """Serve a recording extender in this process."""
    found = Recording(api)
    app = web.Application(client_max_size=2**26)
    for verb in _VERBS:
        app.router.add_post(f"{RECORDING_PREFIX}/{verb}", getattr(found, verb))
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", RECORDING_PORT, backlog=1024).start()
        yield found
    finally:
        await runner.cleanup()
