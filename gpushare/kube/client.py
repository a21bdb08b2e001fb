"""Call the Kubernetes API with raw bodies, and raise ApiError for every failure.

Every request has a time limit and sends it to the API server, so that an abandoned request cannot
take effect much later. A 429 means that nothing was done; the request is repeated after the delay
in the response if the time limit allows it.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any, Final, Self
from urllib.parse import urlencode

import aiohttp
import msgspec
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict
from yarl import URL

from gpushare.clock import BootClock, Clock
from gpushare.errors import ApiError, OutcomeUnknown, Unreachable
from gpushare.kube import paths, responses
from gpushare.kube.connection import failures
from gpushare.kube.connection.access import Certificates, proxy_of
from gpushare.kube.connection.configuration import configured
from gpushare.kube.connection.credentials import Credential, Credentials
from gpushare.kube.fencing import AbortingConnector, FencedBody, sockets_that_expire
from gpushare.kube.paths import Collection
from gpushare.objects.model import Node, Pod, PodCondition
from gpushare.objects.pod_reader import read_pod

REQUEST_SECONDS: Final = 10.0
MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
_CONNECTIONS: Final = 100
_LEAST_SECONDS: Final = 0.5  # with less time left, nothing is sent again
# The API server stores at most 1.5 MiB of protobuf per object, which is 9 MiB as JSON.
ANSWER_BYTES: Final = 32 * 2**20
PAGE_BYTES: Final = 10 * 2**20  # a page of 500 ordinary pods has 4 MiB, one object 9 at most
LINE_BYTES: Final = 32 * 2**20  # of a watch
_BUFFER_BYTES: Final = 2**18  # per connection, received and not yet read
_NOT_SENT: Final = (aiohttp.ClientConnectorError, aiohttp.ClientHttpProxyError)

_decode_node = msgspec.json.Decoder(Node).decode
_encode = msgspec.json.Encoder().encode


class Kube:
    """A client of one API server with one identity. Open it with ``connect``.

    ``clock`` must advance while the machine is suspended: writes must not start after a lease ends.
    ``namespace`` is kubectl's default namespace.
    """

    def __init__(
        self,
        credentials: Credentials,
        session: aiohttp.ClientSession,
        clock: Clock,
        *,
        namespace: str,
    ) -> None:
        self.namespace = namespace
        self._credentials, self._session, self._clock = credentials, session, clock
        access = credentials.current.access
        self._proxy = proxy_of(access)

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        kubeconfig: str | None = None,
        clock: Clock | None = None,
        *,
        context: str | None = None,
        as_kubectl: bool = False,
        plugin_seconds: float | None = None,
        unacknowledged_seconds: float | None = None,
    ) -> AsyncIterator[Self]:
        """Use ``kubeconfig``, else the pod's own ServiceAccount, else the default kubeconfig.

        ``context`` selects a context of the kubeconfig. ``as_kubectl`` prefers the default
        kubeconfig to the ServiceAccount. With ``plugin_seconds`` a credential plugin has this time
        limit and asks no questions. Data that the API server's host, or a proxy, does not
        acknowledge within ``unacknowledged_seconds`` is not delivered later (on Linux). Raises
        SettingsError if no configuration can be used.
        """
        found = await configured(
            kubeconfig, context, as_kubectl=as_kubectl, plugin_seconds=plugin_seconds
        )
        clock = clock or BootClock()
        credentials = Credentials(found.access, found.source, clock)
        limit = unacknowledged_seconds
        sockets = None if limit is None else sockets_that_expire(limit)
        async with aiohttp.ClientSession(
            connector=AbortingConnector(limit=_CONNECTIONS, socket_factory=sockets),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=_BUFFER_BYTES,
            trace_configs=[_without_redirects()],
            # Compressing costs the API server more than sending.
            headers={"User-Agent": "gpushare", "Accept-Encoding": "identity"},
        ) as session:
            yield cls(credentials, session, clock, namespace=found.namespace)

    async def get_pod(self, namespace: str, name: str) -> Pod:
        """Read a pod consistently. Raises NotFound or another ApiError."""
        return responses.decode(
            read_pod, await self.request("GET", paths.pod_path(namespace, name))
        )

    async def get_node(self, name: str) -> Node:
        """Read a node consistently. Raises NotFound or another ApiError."""
        return responses.decode(_decode_node, await self.request("GET", paths.node_path(name)))

    async def bind_pod(
        self,
        pod: Pod,
        node: str,
        annotations: Mapping[str, str],
        *,
        seconds: float = REQUEST_SECONDS,
        may_go: Callable[[], object] | None = None,
    ) -> None:
        """Write node and annotations in one transaction, for exactly this uid.

        Raises Conflict if the pod is bound, terminating, gated or has another uid, and
        OutcomeUnknown if the write may have happened, or may still happen until ``seconds`` have
        passed. ``may_go`` is called when the request is sent; if it raises an ApiError, that is
        raised and nothing was done.
        """
        meta = pod.metadata
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": meta.name,
                "namespace": meta.namespace,
                "uid": meta.uid,
                "annotations": dict(annotations),
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = paths.pod_path(meta.namespace, meta.name) + "/binding"
        await self.request("POST", path, body=body, seconds=seconds, may_go=may_go)

    async def annotate_pod(
        self, namespace: str, name: str, uid: str, annotations: Mapping[str, str]
    ) -> None:
        """Set annotations of exactly this uid; raise Replaced if the name is now another pod's."""
        body = {"metadata": {"uid": uid, "annotations": dict(annotations)}}
        await self.request("PATCH", paths.pod_path(namespace, name), body=body)

    async def patch_pod(
        self,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        *,
        part: str = "",
        seconds: float = REQUEST_SECONDS,
        may_go: Callable[[], object] | None = None,
    ) -> None:
        """Apply a strategic merge patch to a pod, or to the subresource ``part`` of it.

        If ``patch`` contains a uid, raises Replaced if the name is now another pod's.
        ``may_go`` is as in ``bind_pod``.
        """
        await self.request(
            "PATCH",
            paths.pod_path(namespace, name) + (f"/{part}" if part else ""),
            body=patch,
            patch=STRATEGIC_PATCH,
            seconds=seconds,
            may_go=may_go,
        )

    async def set_pod_condition(
        self, namespace: str, name: str, uid: str, condition: PodCondition, changed_at: str
    ) -> None:
        """Set one condition of exactly this uid; raise Replaced if the name is now another pod's.

        ``changed_at`` is in RFC 3339. A strategic patch merges conditions by type; a JSON merge
        patch would remove the kubelet's.
        """
        written = {**msgspec.to_builtins(condition), "lastTransitionTime": changed_at}
        body = {"metadata": {"uid": uid}, "status": {"conditions": [written]}}
        path = paths.pod_path(namespace, name) + "/status"
        await self.request("PATCH", path, body=body, patch=STRATEGIC_PATCH)

    async def evict_pod(
        self,
        pod: Pod,
        *,
        any_version: bool = False,
        grace_seconds: int | None = None,
        is_trial: bool = False,
        seconds: float = REQUEST_SECONDS,
    ) -> None:
        """Evict exactly this uid (policy/v1), and only at this version unless ``any_version``.

        A pod that runs changes often: its version is a condition only where the pod must not have
        changed. Without ``grace_seconds`` it may take as long to end as its author wrote; for a pod
        that is being deleted already, kubelets ignore it (kubernetes/kubernetes#113883).

        ``is_trial``: only ask whether it could be evicted. Raises NotFound if it is deleted,
        Conflict if it has changed or the name is now another pod's, and ApiError with code 429 if a
        PodDisruptionBudget does not allow the eviction now.
        """
        meta = pod.metadata
        conditions = {"uid": meta.uid}
        if not any_version:
            conditions["resourceVersion"] = meta.resource_version
        options: dict[str, Any] = {"preconditions": conditions}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": meta.name, "namespace": meta.namespace},
            "deleteOptions": options,
        }
        path = paths.pod_path(meta.namespace, meta.name) + "/eviction"
        query = [("dryRun", "All")] if is_trial else ()
        await self.request("POST", path, query=query, body=body, seconds=seconds)

    async def create_pod(
        self, namespace: str, body: Mapping[str, Any], *, seconds: float = REQUEST_SECONDS
    ) -> None:
        """Create a pod. Raises Conflict if there is one of its name."""
        path = paths.pods(namespace=namespace).path
        await self.request("POST", path, body=body, seconds=seconds)

    async def delete_pod(self, pod: Pod, *, seconds: float = REQUEST_SECONDS) -> None:
        """Delete exactly this uid, without a grace period.

        Raises NotFound if it is deleted, Conflict if the name is now another pod's.
        """
        meta = pod.metadata
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta.uid}}
        path = paths.pod_path(meta.namespace, meta.name)
        await self.request("DELETE", path, body=body, seconds=seconds)

    async def patch_node(self, name: str, patch: Mapping[str, Any], *, status: bool) -> Node:
        """Merge ``patch`` into a node, through its status subresource if ``status``."""
        path = paths.node_path(name) + ("/status" if status else "")
        return responses.decode(_decode_node, await self.request("PATCH", path, body=patch))

    async def change_node(self, name: str, operations: Sequence[Mapping[str, Any]]) -> None:
        """Apply a JSON patch (RFC 6902) to a node; ApiError with code 422 if its test fails."""
        path = paths.node_path(name)
        await self.request("PATCH", path, body=operations, patch=JSON_PATCH)

    async def create_event(
        self, namespace: str, event: Mapping[str, Any], *, seconds: float = REQUEST_SECONDS
    ) -> None:
        path = paths.events_path(namespace)
        await self.request("POST", path, body=event, seconds=seconds)

    async def list_page(
        self, collection: Collection, *, limit: int, next_page: str, seconds: float = 60.0
    ) -> bytes:
        """Return one page of a consistent list.

        Raises Gone if ``next_page`` has expired, and TooLarge if the page has more than PAGE_BYTES:
        use a smaller ``limit``.
        """
        query = [*collection.query, ("limit", str(limit))]
        if next_page:
            query.append(("continue", next_page))
        return await self.request(
            "GET", collection.path, query=query, seconds=seconds, most_bytes=PAGE_BYTES
        )

    async def watch(
        self, collection: Collection, *, since: str, window_seconds: int, idle_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a watch, including bookmarks, until the server ends it.

        Raises TimeoutError after ``idle_seconds`` without a byte, because a lost connection looks
        like a quiet cluster; TooLarge at a line of more than LINE_BYTES; and another ApiError if
        the watch ends in any other way.
        """
        query = [
            *collection.query,
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", since),
            ("timeoutSeconds", str(window_seconds)),
        ]
        limit = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_SECONDS)
        try:
            async with asyncio.timeout(REQUEST_SECONDS + idle_seconds):
                response = await self._send("GET", collection.path, query, None, limit)
            async with response:
                if response.status != HTTPStatus.OK:
                    answer = await responses.whole(response.content, ANSWER_BYTES)
                    raise self._refusal(response, answer, "GET", collection.path)
                async with (
                    aclosing(responses.until_idle(response.content, idle_seconds)) as parts,
                    aclosing(responses.lines(parts, LINE_BYTES)) as found,
                ):
                    async for line in found:
                        yield line
        except (aiohttp.ClientError, HttpProcessingError) as err:
            raise Unreachable(self._why(err, f"watch {collection.path}")) from err

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: Mapping[str, Any] | Sequence[Any] | None = None,
        patch: str = MERGE_PATCH,
        seconds: float = REQUEST_SECONDS,
        may_go: Callable[[], object] | None = None,
        most_bytes: int = ANSWER_BYTES,
    ) -> bytes:
        """Send a request and return the body of a successful response; else raise ApiError.

        Raises TooLarge if the response has more than ``most_bytes``. All attempts together take at
        most ``seconds``. ``may_go`` is called when a body is sent; its ApiError is raised.
        """
        content = None if body is None else FencedBody(_encode(body), may_go)
        end = self._clock.monotonic() + seconds
        while True:
            credential = self._credentials.current
            try:
                return await self._try(
                    method,
                    path,
                    query,
                    content,
                    patch=patch,
                    seconds=seconds,
                    most_bytes=most_bytes,
                )
            except ApiError as err:
                if err.code == HTTPStatus.UNAUTHORIZED:  # nothing was done
                    if not await self._is_replaced(credential, end):
                        raise
                    seconds = end - self._clock.monotonic()
                    continue
                # Many clients get the same delay: they must not all return at once.
                wait = err.retry_after * random.uniform(1.0, 1.5)  # noqa: S311 - no secret
                is_done = err.code != HTTPStatus.TOO_MANY_REQUESTS or not err.retry_after
                if is_done or wait + _LEAST_SECONDS > end - self._clock.monotonic():
                    raise
                refusal = err
            await asyncio.sleep(wait)
            seconds = end - self._clock.monotonic()
            if seconds < _LEAST_SECONDS:  # the process or the machine was suspended
                raise refusal

    async def _try(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]],
        body: FencedBody | None,
        *,
        patch: str,
        seconds: float,
        most_bytes: int,
    ) -> bytes:
        limit = aiohttp.ClientTimeout(total=seconds)
        limited = [*query, ("timeout", f"{int(seconds * 1000)}ms")]
        try:
            response = await self._send(method, path, limited, body, limit, patch=patch)
            async with response:
                self.server_date = response.headers.get("Date", "")
                answer = await responses.whole(response.content, most_bytes)
        except _NOT_SENT as err:
            raise Unreachable(self._why(err, f"{method} {path}")) from err
        except (aiohttp.ClientError, HttpProcessingError, TimeoutError, OSError) as err:
            if body is not None and body.refusal is not None:
                raise body.refusal from err
            raise OutcomeUnknown(self._why(err, f"{method} {path}", seconds)) from err
        if response.status >= HTTPStatus.MULTIPLE_CHOICES:
            raise self._refusal(response, answer, method, path)
        return answer

    async def _send(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]],
        body: FencedBody | None,
        limit: aiohttp.ClientTimeout,
        *,
        patch: str = MERGE_PATCH,
    ) -> aiohttp.ClientResponse:
        headers = CIMultiDict({"Accept": "application/json", "Content-Type": "application/json"})
        if method == "PATCH":
            headers["Content-Type"] = patch
        headers.extend(self._identity())
        words = f"?{urlencode(query)}" if query else ""
        credential = self._credentials.current
        return await self._session.request(
            method,
            URL(f"{credential.access.server}{path}{words}", encoded=True),
            data=body,
            headers=headers,
            timeout=limit,
            allow_redirects=False,  # a redirected write becomes a GET, or is sent twice
            proxy=self._proxy,
            server_hostname=credential.access.tls_server_name,
            ssl=credential.tls,
        )

    async def open_websocket(
        self,
        path: str,
        *,
        query: Sequence[tuple[str, str]],
        protocol: str,
        seconds: float = REQUEST_SECONDS,
    ) -> aiohttp.ClientWebSocketResponse:
        """Open a websocket with exactly this subprotocol; raise ApiError if that fails.

        All attempts together take at most ``seconds``.
        """
        end = self._clock.monotonic() + seconds
        while True:
            credential = self._credentials.current
            try:
                return await self._try_websocket(path, query, protocol, seconds)
            except ApiError as err:
                is_refused = err.code == HTTPStatus.UNAUTHORIZED
                if not is_refused or not await self._is_replaced(credential, end):
                    raise
            seconds = end - self._clock.monotonic()

    async def _try_websocket(
        self, path: str, query: Sequence[tuple[str, str]], protocol: str, seconds: float
    ) -> aiohttp.ClientWebSocketResponse:
        credential = self._credentials.current
        url = f"{credential.access.server}{path}?{urlencode(query)}"
        try:
            async with asyncio.timeout(seconds):
                return await self._session.ws_connect(
                    URL(url, encoded=True),
                    protocols=(protocol,),
                    headers=CIMultiDict(self._identity()),
                    proxy=self._proxy,
                    server_hostname=credential.access.tls_server_name,
                    ssl=credential.tls,
                )
        except aiohttp.WSServerHandshakeError as err:
            if err.status == HTTPStatus.UNAUTHORIZED:
                raise self._unauthorized() from err
            kind = responses.BY_CODE.get(err.status, ApiError)
            text = f"websocket {path}: {err.status} {err.message}"
            raise kind(text, code=err.status) from err
        except (aiohttp.ClientError, TimeoutError, OSError) as err:
            raise Unreachable(self._why(err, f"websocket {path}", seconds)) from err

    async def _is_replaced(self, refused: Credential, end: float) -> bool:
        """Return whether there are other credentials, and time to use them before ``end``."""
        left = end - self._clock.monotonic() - _LEAST_SECONDS
        is_replaced = await self._credentials.replaced(refused, left)
        return is_replaced and end - self._clock.monotonic() >= _LEAST_SECONDS

    def _why(self, err: Exception, what: str, seconds: float = 0.0) -> str:
        access = self._credentials.current.access
        if isinstance(err, _NOT_SENT):
            return failures.not_reached(err, access, self._proxy)
        return f"{what}: {failures.not_answered(err, access, seconds)}"

    def _refusal(
        self, response: aiohttp.ClientResponse, answer: bytes, method: str, path: str
    ) -> ApiError:
        if response.status == HTTPStatus.UNAUTHORIZED:
            return self._unauthorized()
        if failures.wants_tls(response.status, answer):
            return Unreachable(failures.without_tls(self._credentials.current.access))
        return responses.error(response, answer, method, path)

    def _unauthorized(self) -> ApiError:
        text = failures.not_accepted(self._credentials.current.access)
        return ApiError(text, code=HTTPStatus.UNAUTHORIZED, reason="Unauthorized")

    def _identity(self) -> list[tuple[str, str]]:
        bearer = self.bearer()
        own = [("Authorization", bearer)] if bearer else []
        return [*own, *self._credentials.current.access.impersonation]

    @property
    def is_impersonating(self) -> bool:
        """Return whether requests ask for another identity than that of the credentials."""
        return bool(self._credentials.current.access.impersonation)

    @property
    def client_certificate(self) -> Certificates | None:
        """Return what has the client certificate; None without one."""
        certificates = self._credentials.current.access.certificates
        return certificates if certificates.certificate else None

    def bearer(self) -> str:
        """Return the Authorization header, empty if only a certificate is used.

        Raises Unreachable if the token has characters that a header cannot have.
        """
        value = self._credentials.current.access.authorization
        if not value.isprintable():
            raise Unreachable(
                "the token has a line break or another control character in it: correct its source"
            )
        return value


def _without_redirects() -> aiohttp.TraceConfig:
    """Make redirects of websockets errors: ws_connect cannot be told not to follow them."""

    async def refuse(
        _session: aiohttp.ClientSession,
        _context: SimpleNamespace,
        redirect: aiohttp.TraceRequestRedirectParams,
    ) -> None:
        found = redirect.response
        raise aiohttp.WSServerHandshakeError(
            found.request_info, (), status=found.status, message=found.reason or ""
        )

    made = aiohttp.TraceConfig()
    made.on_request_redirect.append(refuse)
    return made
