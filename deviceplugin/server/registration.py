"""Registers with the kubelet as soon as it appears, and again whenever it has lost the plugin.

The kubelet deletes every other socket in its folder when it starts, and it never connects to a
plugin again by itself: not after a restart, and not after a broken device list. A pod that is
admitted before the plugin has registered fails for good, so the kubelet's socket is polled every
POLL_SECONDS. That costs almost nothing and misses nothing, whereas inotify has a limit per user and
loses events.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc

from deviceplugin import metrics
from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.errors import FolderDeleted
from deviceplugin.server.grpc_server import Endpoint, Service, identity_of, options
from gpushare.contract import RESOURCE_MEMORY
from gpushare.kube.backoff import Backoff
from gpushare.process.lifetime import cancel
from protos.deviceplugin.v1beta1 import api_pb2

log = logging.getLogger(__name__)

KUBELET_SOCKET: Final = "kubelet.sock"
POLL_SECONDS: Final = 0.03  # a check costs 2 microseconds
_REGISTER_SECONDS: Final = 10.0  # the kubelet connects back within the call, with a timeout of 10 s
_STREAM_SECONDS: Final = 5.0
_AGAIN_SECONDS: Final = 1.0  # the same where a list is already being read
_STEADY_SECONDS: Final = 10.0
_LEAVING: Final = ".leaving"  # after the socket's name: makes the kubelet drop the plugin
# The kubelet needs a few ms after the end of a list, and more on a busy node. Nothing shows when it
# is done, and nothing waits for this: the other plugin serves.
_FORGOTTEN_SECONDS: Final = 1.0
_ENDED_SECONDS: Final = 0.05  # the same while all devices are unhealthy
# gRPC shares connections to one address among channels, and waits for a second after a refused one:
# a kubelet that was down for a moment would get its plugin that much later.
_OPTIONS: Final = (("grpc.use_local_subchannel_pool", 1),)

Identity = tuple[int, int]


class Registrar:
    """``why_not`` is empty while the kubelet reads our device list.

    ``is_read_once`` is set when the kubelet has started to read it for the first time.
    ``ended_at`` is when, on the event loop's clock, the kubelet recently ended the list though our
    socket existed, and the same kubelet read another one later: it had not stopped itself.
    """

    def __init__(
        self, folder: Path, endpoint: Endpoint, service: Service, cards: NodeCards
    ) -> None:
        self._kubelet = folder / KUBELET_SOCKET
        self._endpoint = endpoint
        self._service = service
        self._cards = cards
        self._logged = ""
        self.why_not = "not registered with the kubelet yet"
        self.ended_at: deque[float] = deque(maxlen=16)
        self.is_read_once = asyncio.Event()
        self._ended: tuple[Identity, float] | None = None
        self._is_asked_again = False
        self._is_settled = asyncio.Event()

    async def run(self) -> None:
        """Stay registered until cancelled. FolderDeleted if the kubelet's folder was deleted."""
        backoff = Backoff(0.2, 5.0)
        while True:
            await self._wait_for_cards()
            kubelet = await self._wait_for_kubelet()
            self.why_not = self._logged or "registering with the kubelet"
            try:
                if not self._endpoint.is_there:
                    await self._end_lists(kubelet)
                    await self._endpoint.open()
                stream = self._service.streams_opened + 1
                await self._register_with(kubelet)
            except (OSError, grpc.aio.AioRpcError) as err:
                self._failed(err)
                await self._pause(kubelet, backoff.next())
                continue
            if self._ended is not None and self._ended[0] == kubelet:
                self.ended_at.append(self._ended[1])
            self._ended = None
            began = asyncio.get_running_loop().time()
            await self._until_read(kubelet, stream)
            await self._while_read(kubelet, stream)
            if asyncio.get_running_loop().time() - began > _STEADY_SECONDS:
                backoff.reset()
            log.warning("registering again", extra={"why": self.why_not})
            if self._endpoint.is_there:
                # A kubelet that drops the list at once must not be called in a loop.
                await self._pause(kubelet, backoff.next())

    async def _end_lists(self, kubelet: Identity) -> None:
        """End the lists of a lost socket: their end would also end the next registration."""
        if self._service.is_any_read:
            self._service.end_lists()
            await self._pause(kubelet, _ENDED_SECONDS)

    async def register_again(self) -> None:
        """Register again during the current registration, as needed after ``let_go`` of another.

        Return once it is known which list counts from now on.
        """
        self._is_settled.clear()
        self._is_asked_again = True
        await self._is_settled.wait()

    async def take_back(self) -> None:
        """Register again after ``run`` has ended: another plugin should take over and has not."""
        try:
            await self._call_register(self._endpoint.path.name)
        except (OSError, grpc.aio.AioRpcError) as err:
            log.warning("registering again failed", extra={"why": repr(err)})

    async def let_go(self) -> None:
        """Make the kubelet drop this plugin after another one has registered. ``run`` has ended.

        When a device list ends, a kubelet without kubernetes #135437 disconnects the plugin that it
        knows for the resource, and that is now the other one (runClient in
        plugin/v1beta1/handler.go looks it up by name). A registration that fails removes the plugin
        from its records and changes nothing else (connectClient there), so the end of our list
        disconnects no plugin. The other one then registers again, to be in the records.
        """
        path = self._endpoint.path.with_name(self._endpoint.path.name + _LEAVING)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((_refusing(),))
        try:
            try:
                server.add_insecure_port(f"unix:{path}")
                await server.start()
                await self._call_register(path.name)
            finally:
                await server.stop(None)
                path.unlink(missing_ok=True)
        except grpc.aio.AioRpcError as err:
            log.info("the kubelet drops this plugin", extra={"answer": err.details()})
        except (OSError, RuntimeError) as err:
            log.warning("the kubelet cannot be made to drop this plugin", extra={"why": str(err)})
        self._service.end_lists()
        await asyncio.sleep(_FORGOTTEN_SECONDS)

    async def _wait_for_cards(self) -> None:
        version = self._cards.version
        while self._cards.message is None:
            self.why_not = (
                self._cards.refusal or "no GPU is known yet, so there is nothing to offer"
            )
            version = await self._cards.changed(version)

    async def _wait_for_kubelet(self) -> Identity:
        while (kubelet := identity_of(self._kubelet)) is None:
            self.why_not = f"the kubelet's socket {self._kubelet} does not exist"
            self._check_folder()
            await asyncio.sleep(POLL_SECONDS)
        return kubelet

    def _check_folder(self) -> None:
        """Raise FolderDeleted if the mounted folder was deleted: only a new mount shows the next.

        The container is then restarted, and the folder mounted again.
        """
        with contextlib.suppress(OSError):
            if not self._kubelet.parent.stat().st_nlink:
                raise FolderDeleted(
                    f"{self._kubelet.parent} was deleted while it was mounted: ending, to be "
                    f"restarted with the folder that exists now"
                )

    async def _register_with(self, kubelet: Identity) -> None:
        """Register, and give up at once when that kubelet is gone.

        Raises OSError or AioRpcError.
        """
        registering = asyncio.create_task(self._register())
        try:
            while not registering.done():
                if identity_of(self._kubelet) != kubelet:
                    raise OSError("the kubelet's socket was replaced meanwhile")
                await asyncio.wait({registering}, timeout=POLL_SECONDS)
            await registering
        finally:
            await cancel([registering])

    async def _register(self) -> None:
        await self._call_register(self._endpoint.path.name)
        self._logged = ""
        metrics.REGISTRATIONS.labels("ok").inc()
        log.info("registered", extra={"resource": RESOURCE_MEMORY})

    async def _call_register(self, endpoint: str) -> None:
        request = api_pb2.RegisterRequest(
            version="v1beta1",
            endpoint=endpoint,
            resource_name=RESOURCE_MEMORY,
            options=options(),
        )
        async with grpc.aio.insecure_channel(f"unix:{self._kubelet}", options=_OPTIONS) as channel:
            call = channel.unary_unary(
                "/v1beta1.Registration/Register",
                request_serializer=api_pb2.RegisterRequest.SerializeToString,
                response_deserializer=api_pb2.Empty.FromString,
            )
            await call(request, timeout=_REGISTER_SECONDS)

    def _failed(self, err: Exception) -> None:
        why = _answer_of(err)
        metrics.REGISTRATIONS.labels("error").inc()
        self.why_not = f"registration failed: {why}"
        if self._logged != self.why_not:
            log.warning("registration failed", extra={"why": why})
        self._logged = self.why_not

    async def _until_read(self, kubelet: Identity, stream: int) -> None:
        """Wait a limited time until the kubelet opens our list; it normally does so at once."""
        await self._pause(
            kubelet, _STREAM_SECONDS, unless=lambda: self._service.streams_opened >= stream
        )

    async def _while_read(self, kubelet: Identity, stream: int) -> None:
        """Return when there is a reason to register again.

        ``stream`` is the list of this registration: older ones may still be open.
        """
        self.why_not = ""
        metrics.REGISTERED.set(1)
        if self._service.is_read(stream):
            self.is_read_once.set()
        while not self.why_not:
            if self._is_asked_again:
                self._is_asked_again = False
                stream = await self._once_more(kubelet, stream)
                self._is_settled.set()
            if identity_of(self._kubelet) != kubelet:
                self._lost("kubelet", "the kubelet has restarted")
            elif not self._endpoint.is_there:
                self._lost("socket", f"our socket {self._endpoint.path} was deleted")
            elif not self._service.is_read(stream):
                self._ended = kubelet, asyncio.get_running_loop().time()
                self._lost("stream", "the kubelet does not read our device list")
            else:
                await asyncio.sleep(POLL_SECONDS)

    async def _once_more(self, kubelet: Identity, stream: int) -> int:
        """Register while the kubelet reads ``stream``; return the list that counts from now on.

        A kubelet with kubernetes #135437 already knows our socket. It rejects the registration, or
        accepts it and opens no other list: the one that it reads stays valid. A kubelet that asks
        for our options opens another list. If it does not, it has processed the end of the other
        plugin's list late and disconnected us: the following list counts, which is not read.
        """
        following, asked = self._service.streams_opened + 1, self._service.times_asked
        try:
            await self._register_with(kubelet)
        except (OSError, grpc.aio.AioRpcError) as err:
            log.info("the kubelet keeps the existing registration", extra={"why": _answer_of(err)})
            return stream
        await self._pause(
            kubelet,
            _AGAIN_SECONDS,
            unless=lambda: (
                self._service.streams_opened >= following or not self._service.is_read(stream)
            ),
        )
        is_other = self._service.streams_opened >= following or self._service.times_asked > asked
        return following if is_other else stream

    def _lost(self, cause: str, why: str) -> None:
        metrics.REGISTERED.set(0)
        metrics.LOST.labels(cause).inc()
        self.why_not = why

    async def _pause(
        self, kubelet: Identity, seconds: float, *, unless: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait, but no longer than until the kubelet is another one, or our socket is lost."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        was_there = self._endpoint.is_there
        while (  # noqa: ASYNC110 - a new socket sends no notification
            loop.time() < end
            and identity_of(self._kubelet) == kubelet
            and self._endpoint.is_there == was_there
            and not unless()
        ):
            await asyncio.sleep(POLL_SECONDS)


def _answer_of(err: Exception) -> str | None:
    """Return the kubelet's answer, or why it could not be called."""
    return err.details() if isinstance(err, grpc.aio.AioRpcError) else str(err)


def _refusing() -> grpc.GenericRpcHandler:
    """Return a service that fails the one call by which the kubelet accepts a plugin."""

    async def refuse(_: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "gpushare: this plugin is leaving")

    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(refuse)
    }
    return grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers)
