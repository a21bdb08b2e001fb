"""Forward connections to a port of a pod, through the API server's websocket and the kubelet.

The subprotocol is the one that kubelets serve to websockets (k8s.io/kubelet, pkg/cri/streaming/
portforward): in each binary message the first byte is the channel. For one port, channel 0 is data
and 1 is errors; on each, the kubelet first sends the port's number in two bytes.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp

from gpushare.errors import ApiError, Unreachable
from gpushare.kube.client import Kube
from gpushare.kube.paths import pod_path
from gpushare.process.lifetime import cancel
from gpusharectl.reach.rights import Right, needing

PROTOCOL: Final = "v4.channel.k8s.io"
DATA: Final = 0
PROBLEM: Final = 1
_PORT_BYTES: Final = 2
_CHUNK: Final = 2**16


class Forward:
    """``socket`` is a Unix socket; each connection to it is one to the pod's port.

    A socket in a private folder instead of a port: the extender trusts whatever connects to its
    loopback interface. ``problem`` is why the last connection failed.
    """

    def __init__(self, kube: Kube, namespace: str, pod: str, port: int, socket: Path) -> None:
        self.socket = socket
        self.problem: ApiError | None = None
        self._kube, self._namespace, self._pod, self._port = kube, namespace, pod, port

    @classmethod
    @asynccontextmanager
    async def to(cls, kube: Kube, namespace: str, pod: str, port: int) -> AsyncIterator["Forward"]:
        """Open the socket while the context lasts."""
        with tempfile.TemporaryDirectory(prefix="gpushare-") as folder:
            made = cls(kube, namespace, pod, port, Path(folder) / "socket")
            carried: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

            def opened(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                task = asyncio.create_task(made.carry(reader, writer))
                carried[task] = writer
                task.add_done_callback(ended)

            def ended(task: asyncio.Task[None]) -> None:
                carried.pop(task).close()  # one that was cancelled before it began has not

            server = await asyncio.start_unix_server(opened, made.socket)
            try:
                yield made
            finally:
                server.close()
                await cancel(carried)

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection until either side ends it."""
        try:
            async with await self._open() as socket:
                there = asyncio.create_task(self._there(reader, socket))
                try:
                    await self._back(socket, writer)
                finally:
                    await cancel([there])
        except ApiError as err:
            self.problem = err
        except (aiohttp.ClientError, OSError) as lost:
            self.problem = Unreachable(f"{self._name}: the connection was lost: {lost!r}")
        finally:
            writer.close()

    @property
    def _name(self) -> str:
        return f"port {self._port} of pod {self._namespace}/{self._pod}"

    async def _open(self) -> aiohttp.ClientWebSocketResponse:
        path = pod_path(self._namespace, self._pod) + "/portforward"
        query = [("ports", str(self._port))]
        # A websocket begins with GET; Kubernetes 1.35 and newer require create as well.
        with needing(*(Right(e, "pods/portforward", self._namespace) for e in ("get", "create"))):
            return await self._kube.open_websocket(path, query=query, protocol=PROTOCOL)

    async def _there(
        self, reader: asyncio.StreamReader, socket: aiohttp.ClientWebSocketResponse
    ) -> None:
        while data := await reader.read(_CHUNK):
            await socket.send_bytes(bytes([DATA]) + data)
        await socket.close()

    async def _back(
        self, socket: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter
    ) -> None:
        begun: set[int] = set()
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel not in begun:
                begun.add(channel)
                data = data[_PORT_BYTES:]
            if channel == DATA and data:
                writer.write(data)
                await writer.drain()
            elif channel == PROBLEM and data:
                text = data.decode(errors="replace").strip()
                if "connection refused" in text:
                    text = "nothing listens there"
                self.problem = Unreachable(f"{self._name} cannot be reached: {text}")
                return
