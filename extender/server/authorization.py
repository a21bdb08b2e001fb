"""Who may read: the API server is asked who a token is, and what he may see.

Answers are remembered for a minute, and a refusal for less, so that a right given just now is not
waited for. Where the API server does not answer, nobody reads.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Generic, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from extender.server.limits import NAMED_ONLY, PAGE, full, problem
from gpushare.clock import Clock
from gpushare.contract import EXTENDER_PREFIX
from gpushare.errors import UNDECODABLE, ApiError, GpushareError
from gpushare.kube.client import Kube

KEPT_SECONDS: Final = 60.0
REFUSAL_SECONDS: Final = 10.0
ASK_SECONDS: Final = 5.0
MAX_KEPT: Final = 1000
# The API server is asked so many questions at a time about tokens that it never knew, and about
# those that it did. Anybody can invent a token, and have each looked up for ASK_SECONDS.
MOST_ABOUT_STRANGERS: Final = 4
MOST_ABOUT_KNOWN: Final = 32
OPEN_PAGES: Final = frozenset({"/healthz", "/readyz", "/version"})
_TOKEN_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
_ACCESS_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

V = TypeVar("V")


class Denied(GpushareError):
    """``status``: 401 it is not known who asks, 403 he may not, 503 no answer was to be had.

    429: too many others are asked about.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Question:
    """What somebody wants to do: read pods of a ``namespace`` ("" is all), or GET a ``path``."""

    verb: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    def attributes(self) -> dict[str, Any]:
        """The part of a SubjectAccessReview that says so."""
        if self.path:
            return {"nonResourceAttributes": {"verb": "get", "path": self.path}}
        asked = {"verb": self.verb, "version": "v1", "resource": "pods"}
        asked |= {"namespace": self.namespace} if self.namespace else {}
        asked |= {"name": self.name} if self.name else {}
        return {"resourceAttributes": asked}

    @property
    def text(self) -> str:
        if self.path:
            return f"get {self.path}"
        where = f"in namespace {self.namespace}" if self.namespace else "in all namespaces"
        return f"{self.verb} pods {where}"


class User(msgspec.Struct, frozen=True):
    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = {}


class _TokenStatus(msgspec.Struct):
    authenticated: bool = False
    user: User = User()


class _TokenReview(msgspec.Struct):
    status: _TokenStatus


class _AccessStatus(msgspec.Struct):
    allowed: bool = False


class _AccessReview(msgspec.Struct):
    status: _AccessStatus


_read_token_review = msgspec.json.Decoder(_TokenReview).decode
_read_access_review = msgspec.json.Decoder(_AccessReview).decode


@dataclass(slots=True)
class Remembered(Generic[V]):
    """Values for a while, the newest ``most`` of them (pure; times are monotonic seconds)."""

    most: int
    _kept: OrderedDict[Any, tuple[float, V]] = field(default_factory=OrderedDict)

    def __contains__(self, key: Any) -> bool:
        """Whether there is a value, or was one that nothing newer has pushed out."""
        return key in self._kept

    def get(self, key: Any, now: float) -> V | None:
        until, value = self._kept.get(key, (now, None))
        return value if now < until else None

    def put(self, key: Any, value: V, until: float) -> None:
        self._kept[key] = (until, value)
        self._kept.move_to_end(key)
        while len(self._kept) > self.most:
            self._kept.popitem(last=False)


class _Asking:
    """At most so many questions at a time; equal ones wait for the answer to the first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._tasks: dict[Any, asyncio.Task[Any]] = {}

    async def once(self, key: Any, ask: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """The answer; raises Denied where there is no room to ask for it."""
        task: asyncio.Task[V] | None = self._tasks.get(key)
        if task is None:
            if len(self._tasks) >= self._most:
                raise Denied(429, "the API server is being asked about too many others: try again")
            task = self._tasks[key] = asyncio.create_task(ask())
            task.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(task)  # another may wait for it who has not hung up

    def _forget(self, key: Any, done: asyncio.Task[Any]) -> None:
        del self._tasks[key]
        if not done.cancelled():
            done.exception()  # whoever wanted it may be gone


class Authorizer:
    """What the API server has said lately, and who asks it."""

    def __init__(self, kube: Kube, clock: Clock) -> None:
        self._kube, self._clock = kube, clock
        self._users: Remembered[User] = Remembered(MAX_KEPT)
        self._may: Remembered[bool] = Remembered(MAX_KEPT)
        # Apart: whoever tries a thousand tokens pushes out nobody who is known.
        self._refused: Remembered[Any] = Remembered(MAX_KEPT)
        self._known_ones = _Asking(MOST_ABOUT_KNOWN)
        self._strangers = _Asking(MOST_ABOUT_STRANGERS)

    async def check(self, token: str, question: Question) -> None:
        """Return if whoever has the token may; raises Denied."""
        if not token or not token.isascii():  # what came as other bytes cannot even be sent on
            raise Denied(401, "say who you are: Authorization: Bearer <token>")
        key = hashlib.sha256(token.encode()).digest()  # no token is kept
        try:
            user = await self._known(
                self._users, key, lambda: self._who(token), lambda user: bool(user.username),
                self._known_ones if key in self._users else self._strangers,
            )  # fmt: skip
            if not user.username:
                raise Denied(401, "the API server does not know this token")
            allowed = await self._known(
                self._may, (user.uid, user.username, key, question),
                lambda: self._whether(user, question), bool, self._known_ones,
            )  # fmt: skip
        except (ApiError, TimeoutError, *UNDECODABLE) as err:
            text = "the API server, which knows who may read, does not say: try again"
            raise Denied(503, text) from err
        if not allowed:
            raise Denied(403, f"{user.username} may not {question.text}")

    async def may(self, token: str, question: Question) -> bool:
        """Whether whoever has the token may; raises Denied where that cannot be told."""
        try:
            await self.check(token, question)
        except Denied as err:
            if err.status != HTTPStatus.FORBIDDEN:
                raise
            return False
        return True

    async def _known(
        self,
        kept: Remembered[V],
        key: Any,
        ask: Callable[[], Awaitable[V]],
        is_good: Callable[[V], bool],
        asking: _Asking,
    ) -> V:
        now = self._clock.monotonic()
        for each in (kept, self._refused):
            if (found := each.get(key, now)) is not None:
                return found

        async def asked() -> V:
            value = await ask()
            room, seconds = (
                (kept, KEPT_SECONDS) if is_good(value) else (self._refused, REFUSAL_SECONDS)
            )
            room.put(key, value, self._clock.monotonic() + seconds)
            return value

        return await asking.once(key, asked)

    async def _who(self, token: str) -> User:
        body = _review("authentication.k8s.io/v1", "TokenReview", {"token": token})
        answer = await self._kube.request("POST", _TOKEN_REVIEWS, body=body, seconds=ASK_SECONDS)
        status = _read_token_review(answer).status
        return status.user if status.authenticated else User()

    async def _whether(self, user: User, question: Question) -> bool:
        who = {
            "user": user.username,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": {name: list(values) for name, values in user.extra.items()},
        }
        spec = {**who, **question.attributes()}
        body = _review("authorization.k8s.io/v1", "SubjectAccessReview", spec)
        answer = await self._kube.request("POST", _ACCESS_REVIEWS, body=body, seconds=ASK_SECONDS)
        return _read_access_review(answer).status.allowed


@dataclass(frozen=True, slots=True)
class Permit:
    """What a caller was let in by, for an answer that lasts."""

    authorizer: Authorizer
    token: str
    question: Question

    async def check(self) -> None:
        """Return if it still holds; raises Denied."""
        await self.authorizer.check(self.token, self.question)


PERMIT: Final = web.RequestKey("permit", Permit)


def _review(version: str, kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "spec": spec}


def question_of(path: str, parts: Mapping[str, str]) -> Question | None:
    """What a page shows, as a right of Kubernetes; None for the pages that are for everybody.

    A page about one pod wants ``get`` on it, and names pods of other namespaces to those alone who
    may list all. All other pages do name them, or what would have to go for a pod.
    """
    if path in OPEN_PAGES or path == PAGE or path.startswith(f"{PAGE}/"):
        return None
    if not path.startswith(f"{EXTENDER_PREFIX}/"):
        return Question(path=path)
    if parts.get("namespace"):
        return Question("get", parts["namespace"], parts.get("pod", ""))
    return Question("list")


def reviewed(authorizer: Authorizer) -> Middleware:
    """A middleware that asks the API server before anything but health is shown."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        question = question_of(request.path, request.match_info)
        if question is None:
            return await handler(request)
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        known = token.strip() if scheme.lower() == "bearer" else ""
        try:
            await authorizer.check(known, question)
            if question.namespace and not await authorizer.may(known, Question("list")):
                request[NAMED_ONLY] = question.namespace
        except Denied as err:
            is_full = err.status == HTTPStatus.TOO_MANY_REQUESTS
            response = full(str(err)) if is_full else problem(err.status, str(err))
            if err.status == HTTPStatus.UNAUTHORIZED:
                response.headers["WWW-Authenticate"] = "Bearer"
            return response
        request[PERMIT] = Permit(authorizer, known, question)
        return await handler(request)

    return check
