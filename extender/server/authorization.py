"""Authorization of readers: the API server authenticates each token and checks its rights.

Answers are cached for a minute, and denials for less, so that a right that was just granted works
soon. Without an answer of the API server, every request is denied.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Generic, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from extender.server.limits import full
from extender.server.paths import HEALTH, is_page_file
from gpushare.clock import Clock
from gpushare.contract import EXTENDER_PREFIX
from gpushare.errors import UNDECODABLE, ApiError, GpushareError
from gpushare.http_server.requests import problem
from gpushare.kube.client import Kube

ALLOWED_SECONDS: Final = 60.0
DENIED_SECONDS: Final = 10.0
REVIEW_SECONDS: Final = 5.0
MAX_CACHED: Final = 1000
# Reviews in progress, of tokens that are not cached and of others. Anybody can send invented
# tokens, and each takes a review of up to REVIEW_SECONDS.
MAX_UNKNOWN_REVIEWS: Final = 4
MAX_KNOWN_REVIEWS: Final = 32
_TOKEN_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 - a path
_ACCESS_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

V = TypeVar("V")


class Denied(GpushareError):
    """``status``: 401 unknown caller, 403 no right, 503 no answer, 429 too many reviews."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Question:
    """The right to read pods of a ``namespace`` ("" is all), or to get a ``path``."""

    verb: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    def attributes(self) -> dict[str, Any]:
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


class _Status(msgspec.Struct):
    authenticated: bool = False
    user: User = User()
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _Status


_decode_review = msgspec.json.Decoder(_Review).decode


@dataclass(slots=True)
class Cache(Generic[V]):
    """Values that expire, the newest ``most`` of them (pure; times are monotonic seconds)."""

    most: int
    _values: OrderedDict[Any, tuple[float, V]] = field(default_factory=OrderedDict)

    def __contains__(self, key: Any) -> bool:
        """Return whether there is a value, even an expired one."""
        return key in self._values

    def get(self, key: Any, now: float) -> V | None:
        until, value = self._values.get(key, (now, None))
        return value if now < until else None

    def put(self, key: Any, value: V, until: float) -> None:
        self._values[key] = (until, value)
        self._values.move_to_end(key)
        while len(self._values) > self.most:
            self._values.popitem(last=False)


class _Reviews:
    """Limits the reviews in progress; equal ones share one call."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._tasks: dict[Any, asyncio.Task[Any]] = {}

    async def share(self, key: Any, review: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """Return the result of the review; raise Denied at the limit."""
        task: asyncio.Task[V] | None = self._tasks.get(key)
        if task is None:
            if len(self._tasks) >= self._most:
                raise Denied(429, "too many reviews by the API server are in progress: try again")
            task = self._tasks[key] = asyncio.create_task(review())
            task.add_done_callback(lambda done: self._forget(key, done))
        return await asyncio.shield(task)  # a caller that hangs up does not cancel it for others

    def _forget(self, key: Any, done: asyncio.Task[Any]) -> None:
        del self._tasks[key]
        if not done.cancelled():
            done.exception()  # all callers may have hung up


class Authorizer:
    def __init__(self, kube: Kube, clock: Clock) -> None:
        self._kube, self._clock = kube, clock
        self._users: Cache[User] = Cache(MAX_CACHED)
        self._allowed: Cache[bool] = Cache(MAX_CACHED)
        # Separate, so that a thousand invented tokens evict no valid one.
        self._denied: Cache[Any] = Cache(MAX_CACHED)
        self._of_known = _Reviews(MAX_KNOWN_REVIEWS)
        self._of_unknown = _Reviews(MAX_UNKNOWN_REVIEWS)

    async def check(self, token: str, question: Question) -> User:
        """Return the token's user if it has the right; raise Denied."""
        if not token or not token.isascii():  # other characters cannot be sent on
            raise Denied(401, "send a token in the header Authorization: Bearer <token>")
        key = hashlib.sha256(token.encode()).digest()  # no token is kept
        try:
            user = await self._reviewed(
                self._users, key, lambda: self._authenticate(token), lambda user: user.username,
                self._of_known if key in self._users else self._of_unknown,
            )  # fmt: skip
            if not user.username:
                raise Denied(401, "the API server does not accept this token")
            allowed = await self._reviewed(
                self._allowed, (user.uid, user.username, key, question),
                lambda: self._authorize(user, question), bool, self._of_known,
            )  # fmt: skip
        except (ApiError, TimeoutError, *UNDECODABLE) as err:
            text = "the API server, which checks tokens, does not answer: try again"
            raise Denied(503, text) from err
        if not allowed:
            raise Denied(403, f"{user.username} may not {question.text}")
        return user

    async def may(self, token: str, question: Question) -> bool:
        """Return whether the token's user has the right; raise Denied if that is unknown."""
        try:
            await self.check(token, question)
        except Denied as err:
            if err.status != HTTPStatus.FORBIDDEN:
                raise
            return False
        return True

    async def _reviewed(
        self,
        cache: Cache[V],
        key: Any,
        review: Callable[[], Awaitable[V]],
        is_positive: Callable[[V], object],
        reviews: _Reviews,
    ) -> V:
        now = self._clock.monotonic()
        for each in (cache, self._denied):
            if (found := each.get(key, now)) is not None:
                return found

        async def review_and_cache() -> V:
            value = await review()
            kept, seconds = (
                (cache, ALLOWED_SECONDS) if is_positive(value) else (self._denied, DENIED_SECONDS)
            )
            kept.put(key, value, self._clock.monotonic() + seconds)
            return value

        return await reviews.share(key, review_and_cache)

    async def _authenticate(self, token: str) -> User:
        spec = {"token": token}
        status = await self._review(_TOKEN_REVIEWS, "authentication", "TokenReview", spec)
        return status.user if status.authenticated else User()

    async def _authorize(self, user: User, question: Question) -> bool:
        spec = {
            "user": user.username,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": {name: list(values) for name, values in user.extra.items()},
            **question.attributes(),
        }
        status = await self._review(_ACCESS_REVIEWS, "authorization", "SubjectAccessReview", spec)
        return status.allowed

    async def _review(self, path: str, group: str, kind: str, spec: Mapping[str, Any]) -> _Status:
        body = {"apiVersion": f"{group}.k8s.io/v1", "kind": kind, "spec": spec}
        answer = await self._kube.request("POST", path, body=body, seconds=REVIEW_SECONDS)
        return _decode_review(answer).status


# Checks again the right by which a request was admitted, while its response lasts.
PERMIT: Final = web.RequestKey("permit", partial)
# Shares the limits on requests in progress: the user, or all service accounts of a namespace, of
# which a tenant can create any number.
CALLER: Final = web.RequestKey("caller", str)
_SERVICE_ACCOUNT: Final = "system:serviceaccount:"
# The only namespace whose pods the response can name; without it, all.
NAMED_ONLY: Final = web.RequestKey("named_only", str)


def question_of(path: str, parts: Mapping[str, str]) -> Question | None:
    """Return the right in Kubernetes that a path requires; None if it requires none.

    A path about one pod requires ``get`` on it; its response names pods of other namespaces only
    to callers that can list all pods. A path about a namespace requires ``list`` there. All other
    responses about the cluster name pods everywhere.
    """
    if path in HEALTH or is_page_file(path):
        return None
    if not path.startswith(f"{EXTENDER_PREFIX}/"):
        return Question(path=path)
    if parts.get("pod"):
        return Question("get", parts.get("namespace", ""), parts["pod"])
    return Question("list", parts.get("namespace", ""))


def _caller(username: str) -> str:
    is_account = username.startswith(_SERVICE_ACCOUNT)
    return username.rpartition(":")[0] if is_account else username


def authorize(authorizer: Authorizer) -> Middleware:
    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        question = question_of(request.path, request.match_info)
        if question is None:
            return await handler(request)
        scheme, _, value = request.headers.get("Authorization", "").partition(" ")
        token = value.strip() if scheme.lower() == "bearer" else ""
        try:
            user = await authorizer.check(token, question)
            if question.namespace and not await authorizer.may(token, Question("list")):
                request[NAMED_ONLY] = question.namespace
        except Denied as err:
            is_full = err.status == HTTPStatus.TOO_MANY_REQUESTS
            response = full(str(err)) if is_full else problem(err.status, str(err))
            if err.status == HTTPStatus.UNAUTHORIZED:
                response.headers["WWW-Authenticate"] = "Bearer"
            return response
        request[CALLER] = _caller(user.username)
        request[PERMIT] = partial(authorizer.check, token, question)
        return await handler(request)

    return middleware
