"""Questions that an extender answers, or the same code here where none can be asked."""

import asyncio
from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from typing import Any, Final, TypeVar

import msgspec

from gpushare.answers import explain, what_if
from gpushare.contract import EXTENDER_PREFIX
from gpushare.errors import UNDECODABLE, ApiError, SettingsError
from gpushare.kube.client import Kube
from gpushare.objects.model import Node, Pod
from gpusharectl.reach.extender import Extender, all_nodes, all_pods, extender
from gpusharectl.reach.listed_cluster import Seen
from gpusharectl.reach.options import Target
from gpusharectl.reach.rights import Lacking, Right

REACH_SECONDS: Final = 10.0
UNKNOWN_HERE: Final = (
    "what only an extender knows: reserves of pods that are being bound, and its settings"
)

T = TypeVar("T")

_pod_view = msgspec.json.Decoder(explain.PodView)
_answer = msgspec.json.Decoder(what_if.Answer)


class Asking:
    """One way to answers. ``why_not`` says why no extender is asked, empty where one is."""

    def __init__(self, kube: Kube, found: Extender | None, why_not: str) -> None:
        self.why_not = why_not
        self._kube, self._extender = kube, found
        self._seen: Seen | None = None

    @classmethod
    @asynccontextmanager
    async def open(cls, target: Target, kube: Kube) -> AsyncIterator["Asking"]:
        """By an extender where one is reached; else by the API server's lists."""
        async with AsyncExitStack() as stack:
            found, why = None, ""
            try:
                async with asyncio.timeout(REACH_SECONDS):
                    found = await stack.enter_async_context(extender(target, kube))
            except ApiError as err:
                why = str(err)
            except TimeoutError:
                why = f"no extender answers within {REACH_SECONDS:g} s"
            yield cls(kube, found, why)

    async def explain(self, pod: Pod, shown: int) -> explain.PodView:
        """Why the pod is where it is. ApiError where nothing can be told of nodes."""
        if self._extender is None:
            return ended(explain.explain(await self._lists(), pod, None, now=0.0, shown=shown))
        meta = pod.metadata
        page = f"{EXTENDER_PREFIX}/explain/{meta.namespace}/{meta.name}?nodes={shown}"
        return self._decoded(_pod_view, await self._extender.get(page))

    async def what_if(self, pod: Mapping[str, Any], count: int) -> what_if.Answer:
        """Where so many of it would fit. SettingsError for what is no such pod."""
        body = {"pod": pod, "count": count}
        try:
            question, extras = _question(msgspec.json.encode(body))
        except TypeError as err:  # YAML has keys that JSON has not
            raise SettingsError(f"this is no pod: {err}") from err
        if self._extender is None:
            found = ended(what_if.answer(await self._lists(), question, extras))
            found.not_checked.append(UNKNOWN_HERE)
            return found
        try:
            text = await self._extender.post(f"{EXTENDER_PREFIX}/what-if", body)
        except ApiError as err:
            if err.code == HTTPStatus.BAD_REQUEST:
                raise SettingsError(str(err)) from err
            raise
        return self._decoded(_answer, text)

    async def _lists(self) -> Seen:
        if self._seen is None:
            rights: list[Right] = []
            nodes: list[Node] = []
            pods: list[Pod] = []
            try:
                nodes = await all_nodes(self._kube)
            except Lacking as err:
                rights += err.rights
            try:
                pods = await all_pods(self._kube)
            except Lacking as err:
                rights += err.rights
            if rights:
                raise Lacking(*rights)
            self._seen = Seen(nodes, pods)
        return self._seen

    def _decoded(self, decoder: msgspec.json.Decoder[T], body: bytes) -> T:
        try:
            return decoder.decode(body)
        except UNDECODABLE as err:
            where = self._extender.where if self._extender is not None else ""
            raise ApiError(f"{where} answers what this program cannot read: {err}") from err


def _question(body: bytes) -> tuple[what_if.Question, what_if.Extras]:
    """The question as an extender would read it."""
    try:
        question = what_if.read_question(body)
        extras = what_if.read_extras(body)
    except UNDECODABLE as err:
        raise SettingsError(f"this is no pod: {err}") from err
    if not question.pod.containers:
        raise SettingsError("this is no pod: it has no spec.containers")
    return question, extras


def ended(steps: Generator[None, None, T]) -> T:
    """What the steps come to, taken without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
