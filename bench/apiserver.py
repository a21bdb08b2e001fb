"""Sends many requests at once to a local cluster's API server, as its administrator."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self
from urllib.parse import urlencode

import aiohttp
import msgspec

from gpushare.objects.model import Pod
from localcluster.cluster import Cluster

PARALLEL = 24
PODS = "/api/v1/namespaces/default/pods"


class _Event(msgspec.Struct):
    type: str
    object: Pod


_decode_event = msgspec.json.Decoder(_Event).decode


class ApiServer:
    """Requests that the server rejects raise RuntimeError with its message."""

    def __init__(self, session: aiohttp.ClientSession, server: str) -> None:
        self._session, self._server = session, server

    @classmethod
    @asynccontextmanager
    async def of(cls, cluster: Cluster) -> AsyncIterator[Self]:
        pki = cluster.state.pki
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        connector = aiohttp.TCPConnector(ssl=context, limit=PARALLEL + 4)
        limit = aiohttp.ClientTimeout(total=120)
        async with aiohttp.ClientSession(connector=connector, timeout=limit) as session:
            yield cls(session, cluster.server)

    async def request(
        self, method: str, path: str, body: Any = None, *, content_type: str = "application/json"
    ) -> bytes:
        data = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": content_type}
        async with self._session.request(
            method, self._server + path, data=data, headers=headers
        ) as response:
            answer = await response.read()
            if response.status >= 300:  # noqa: PLR2004 - any success
                raise RuntimeError(f"{method} {path}: {response.status}: {answer[:500]!r}")
            return answer

    async def each(
        self,
        method: str,
        path: str | Callable[[Mapping[str, Any]], str],
        bodies: Iterable[Mapping[str, Any]],
        *,
        content_type: str = "application/json",
    ) -> None:
        left = iter(bodies)

        async def some() -> None:
            for body in left:
                where = path if isinstance(path, str) else path(body)
                await self.request(method, where, body, content_type=content_type)

        async with asyncio.TaskGroup() as group:
            for _ in range(PARALLEL):
                group.create_task(some())

    async def delete_all(self, path: str, label: str) -> None:
        """Delete the objects with a label immediately, because no kubelet would end them."""
        query = urlencode({"labelSelector": label})
        await self.request("DELETE", f"{path}?{query}", {"gracePeriodSeconds": 0})

    async def version(self, path: str) -> str:
        """Return the resourceVersion from which a watch shows every later change."""
        found = msgspec.json.decode(await self.request("GET", f"{path}?limit=1"))
        version: str = found["metadata"]["resourceVersion"]
        return version

    async def bound(self, label: str, since: str) -> AsyncIterator[tuple[str, str]]:
        """Yield each pod's name and node once, when a watch shows it bound."""
        seen: set[str] = set()
        async for kind, pod in self.changes(label, since):
            name = pod.metadata.name
            if kind != "DELETED" and pod.node and name not in seen:
                seen.add(name)
                yield name, pod.node

    async def changes(
        self, label: str, since: str, path: str = PODS
    ) -> AsyncGenerator[tuple[str, Pod], None]:
        """Yield the type and pod of each event of a watch."""
        limit = aiohttp.ClientTimeout(total=None)
        while True:  # the server ends a watch whose reader was slow for a moment
            query = urlencode({"watch": "true", "labelSelector": label, "resourceVersion": since})
            async with self._session.get(f"{self._server}{path}?{query}", timeout=limit) as answer:
                async for line in answer.content:
                    event = _decode_event(line)
                    since = event.object.metadata.resource_version
                    yield event.type, event.object

    async def requests(self) -> dict[tuple[str, str, str], float]:
        found: dict[tuple[str, str, str], float] = {}
        for line in (await self.request("GET", "/metrics")).decode().splitlines():
            if line.startswith("apiserver_request_total{"):
                labels, number = labels_of(line)
                key = (labels["verb"], labels["resource"], labels["subresource"])
                found[key] = found.get(key, 0) + number
        return found


def labels_of(line: str) -> tuple[dict[str, str], float]:
    """Return labels and value of one line of metrics whose label values contain no quotes."""
    inside, _, number = line[line.index("{") + 1 :].rpartition("} ")
    pairs = (part.partition("=") for part in inside.split('",'))
    return {name: value.strip('"') for name, _, value in pairs}, float(number)
