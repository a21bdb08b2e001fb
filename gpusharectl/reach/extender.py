"""Read lists from the API server, and pages from an extender.

An extender is reached by a port-forward to its pod, because it listens on its loopback interface;
or by its reading listener if ``--server`` names it.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from typing import Any, Final, TypeVar

import aiohttp
import msgspec

from gpushare.contract import ANNOTATION_ADDRESS, EXTENDER_PORT, EXTENDER_PREFIX
from gpushare.errors import UNDECODABLE, ApiError, NotFound, SettingsError, TooLarge, Unreachable
from gpushare.kube.client import Kube
from gpushare.kube.connection import failures
from gpushare.kube.connection.trust import trusting
from gpushare.kube.lists import list_all
from gpushare.kube.paths import lease_path, nodes, pods
from gpushare.kube.responses import whole
from gpushare.objects.model import Node, ObjectMeta, Pod, PodStatus
from gpushare.text.counted import counted
from gpusharectl.reach.options import Target
from gpusharectl.reach.port_forward import Forward
from gpusharectl.reach.rights import Lacking, Right, needing

EXTENDER_NAMES: Final = ("gpushare-extender", "gpushare-scheduler")
LEASE: Final = "gpushare-extender"
ANSWER_SECONDS: Final = 30.0
REACH_SECONDS: Final = 10.0
ANSWER_BYTES: Final = 2**28  # the shares of 150,000 pods, the most of a cluster, have 60 MiB
ORIGIN: Final = failures.Origin("--server-ca (GPUSHARE_SERVER_CA)", "--server (GPUSHARE_SERVER)")
_SELECTOR: Final = f"app.kubernetes.io/name in ({', '.join(EXTENDER_NAMES)})"

T = TypeVar("T")


class NoExtender(ApiError):
    """No extender can be asked."""


async def all_nodes(kube: Kube, name: str = "") -> list[Node]:
    """List every node, or the one of that name. ApiError, which names a missing right."""
    selector = f"metadata.name={name}" if name else ""
    with needing(Right("list", "nodes", is_namespaced=False)):
        return await list_all(kube, nodes(field_selector=selector), Node)


async def all_pods(kube: Kube, namespace: str = "", *, node: str = "") -> list[Pod]:
    """List all pods, or those of a namespace or node. ApiError, which names a missing right."""
    selector = f"spec.nodeName={node}" if node else ""
    collection = pods(namespace=namespace, field_selector=selector)
    with needing(Right("list", "pods", namespace)):
        return await list_all(kube, collection, Pod)


class Extender:
    """Get an extender's pages. ``where`` names it in messages.

    ``is_encrypted``: nobody on the way can read a token.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        base: str,
        where: str,
        *,
        forward: Forward | None = None,
        bearer: str = "",
    ) -> None:
        self.where, self.is_encrypted = where, base.startswith("https:")
        self._session, self._base = session, base
        self._forward = forward
        self._headers = {"Authorization": bearer} if bearer else {}

    async def get(self, page: str, *, seconds: float = ANSWER_SECONDS) -> bytes:
        """Get a page by its whole path. ApiError with the extender's own text if it refuses."""
        return await self._ask("GET", page, None, seconds)

    async def post(
        self, page: str, body: Mapping[str, Any], *, seconds: float = ANSWER_SECONDS
    ) -> bytes:
        return await self._ask("POST", page, msgspec.json.encode(body), seconds)

    def silence(self, err: Exception, seconds: float = ANSWER_SECONDS) -> str:
        """Say why a page could not be read."""
        return f"{self.where} does not answer: {failures.reason(err, ORIGIN, seconds)}"

    def decoded(self, body: bytes, kind: type[T]) -> T:
        """Decode an answer; ApiError if it cannot be read."""
        try:
            return msgspec.json.decode(body, type=kind)
        except UNDECODABLE as err:
            raise ApiError(f"{self.where} sent an answer that cannot be read: {err}") from err

    @asynccontextmanager
    async def opened(
        self, page: str, headers: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open a page without a time limit, whatever its status."""
        for_ever = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_SECONDS)
        whole = {**self._headers, **headers}
        async with self._session.get(
            self._base + page, headers=whole, timeout=for_ever, allow_redirects=False
        ) as answer:
            yield answer

    async def _ask(self, method: str, page: str, body: bytes | None, seconds: float) -> bytes:
        headers = {**self._headers, "Content-Type": "application/json"}
        limit = aiohttp.ClientTimeout(total=seconds)
        try:
            async with self._session.request(
                method,
                self._base + page,
                data=body,
                headers=headers,
                timeout=limit,
                allow_redirects=False,
            ) as response:
                answer = await whole(response.content, ANSWER_BYTES)
        except TooLarge as err:
            raise TooLarge(f"{self.where}: {err}") from err
        except (aiohttp.ClientError, TimeoutError, OSError) as err:
            if self._forward is not None and self._forward.problem is not None:
                raise self._forward.problem from err
            raise Unreachable(self.silence(err, seconds)) from err
        if response.status != HTTPStatus.OK:
            raise self._refusal(response.status, answer)
        return answer

    def _refusal(self, code: int, answer: bytes) -> ApiError:
        try:
            text = msgspec.json.decode(answer, type=_Problem).error
        except UNDECODABLE:
            shown = answer[:200].decode(errors="replace")
            text = f"the answer is {code} {shown}; check {ORIGIN.address}"
        kind = NotFound if code == HTTPStatus.NOT_FOUND else ApiError
        if code == HTTPStatus.UNAUTHORIZED and not self._headers:
            text += (
                ". The kubeconfig has no token (client certificates are not accepted there)"
                if self.is_encrypted
                else ". A token is sent only to an address that begins with https"
            )
        return kind(f"{self.where}: {text}", code=code)


class _Problem(msgspec.Struct):
    error: str = msgspec.field(name="Error")


@asynccontextmanager
async def extender(target: Target, kube: Kube) -> AsyncIterator[Extender]:
    """Connect to the leader if it is known, else to any replica that is ready.

    Raises ApiError that says what is missing, SettingsError for an unusable ``--server-ca``.
    """
    if target.server is not None:
        async with _by_url(target.server, target.server_ca, kube) as found:
            await found.get("/readyz")
            yield found
        return
    if not hasattr(asyncio, "start_unix_server"):
        raise NoExtender("this system has no Unix sockets: use --server")
    candidates = await _candidates(kube, target.system)
    async with AsyncExitStack() as stack:
        problem: ApiError | None = None
        for name in candidates:
            made = await stack.enter_async_context(by_pod(kube, target.system, name))
            try:
                await made.get("/readyz")
            except ApiError as err:
                if err.code == HTTPStatus.FORBIDDEN:
                    raise
                problem = problem or err
                continue
            yield made
            return
        assert problem is not None  # noqa: S101 - there was a candidate
        raise problem


@asynccontextmanager
async def extender_or_reason(
    target: Target, kube: Kube, seconds: float = REACH_SECONDS
) -> AsyncIterator[tuple[Extender | None, str]]:
    """Connect to an extender; if none answers within ``seconds``, None and why."""
    async with AsyncExitStack() as stack:
        found, why = None, ""
        try:
            async with asyncio.timeout(seconds):
                found = await stack.enter_async_context(extender(target, kube))
        except Lacking as err:
            why = err.without_extender
        except ApiError as err:
            why = str(err)
        except TimeoutError:
            why = f"no extender answers within {seconds:g} s"
        yield found, why


@asynccontextmanager
async def by_pod(kube: Kube, namespace: str, name: str) -> AsyncIterator[Extender]:
    async with (
        Forward.to(kube, namespace, name, EXTENDER_PORT) as forward,
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(forward.socket))) as session,
    ):
        where = f"extender in pod {namespace}/{name}"
        yield Extender(session, f"http://127.0.0.1:{EXTENDER_PORT}", where, forward=forward)


@asynccontextmanager
async def _by_url(server: str, authority: str | None, kube: Kube) -> AsyncIterator[Extender]:
    base = server.rstrip("/").removesuffix(EXTENDER_PREFIX)
    try:
        context = trusting(authority)
    except OSError as err:
        raise SettingsError(
            f"{ORIGIN.authority}: {authority!r} has no usable certificates"
        ) from err
    # Without TLS anybody on the way could read the token; the extender cannot impersonate.
    is_sent = base.startswith("https:") and not kube.is_impersonating
    bearer = kube.bearer() if is_sent else ""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        yield Extender(session, base, f"extender at {base}", bearer=bearer)


class _Status(PodStatus, rename="camel", gc=False, frozen=True):
    pod_ip: str = msgspec.field(name="podIP", default="")


class _ExtenderPod(Pod, gc=False, frozen=True):
    status: _Status = _Status()

    @property
    def is_ready(self) -> bool:
        ready = self.condition("Ready")
        return ready is not None and ready.status == "True"


def is_extender(pod: Pod) -> bool:
    return pod.labels.get("app.kubernetes.io/name") in EXTENDER_NAMES and not pod.is_terminal


async def _candidates(kube: Kube, namespace: str) -> list[str]:
    """Return the names of the pods to try, the leader first."""
    with needing(Right("list", "pods", namespace)):
        collection = pods(namespace=namespace, label_selector=_SELECTOR)
        found = await list_all(kube, collection, _ExtenderPod)
    if not found:
        raise NoExtender(
            f"no extender runs as a pod in namespace {namespace}: use --system-namespace for "
            "another namespace, or --server for the address of an extender"
        )
    ready = [each for each in found if each.is_ready and not each.metadata.deletion_timestamp]
    if not ready:
        number = counted(len(found), "extender")
        raise NoExtender(f"no extender in namespace {namespace} is ready, of {number}")
    leader = await _address_of_leader(kube, namespace)
    ready.sort(key=lambda each: (each.status.pod_ip != leader, each.metadata.name))
    return [each.metadata.name for each in ready]


class _Lease(msgspec.Struct):
    metadata: ObjectMeta


async def _address_of_leader(kube: Kube, namespace: str) -> str:
    """Return the leader's address; empty without a Lease, or if it cannot be read."""
    try:
        body = await kube.request("GET", lease_path(namespace, LEASE))
        lease = msgspec.json.decode(body, type=_Lease)
    except (ApiError, *UNDECODABLE):
        return ""
    address = (lease.metadata.annotations or {}).get(ANNOTATION_ADDRESS, "")
    return address.rpartition(":")[0].strip("[]")


async def asked_leader(target: Target, kube: Kube, page: str, kind: type[T]) -> T:
    """Return a page that only an extender knows, by its path after the prefix.

    ApiError if no extender answers, or if it is of a version without this page.
    """
    async with extender_or_reason(target, kube) as (found, why):
        if found is None:
            raise NoExtender(why)
        try:
            return found.decoded(await found.get(f"{EXTENDER_PREFIX}/{page}"), kind)
        except NotFound as err:
            raise NoExtender(f"{err}: the extender is of an earlier version") from err
