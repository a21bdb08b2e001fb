"""Registers with the kubelet, at once when it appears and again whenever it has forgotten us.

The kubelet deletes every socket beside its own when it starts, and it never dials a plugin again
by itself: not after a restart, and not after a broken device list. A pod that is admitted before
we have registered has failed for good, so its socket is looked at every POLL_SECONDS.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc

from deviceplugin import metrics
from deviceplugin.node_cards import NodeCards
from deviceplugin.server import SOCKET_NAME, Endpoint, Service, identity_of, options
from gpushare.contract import RESOURCE_MEMORY
from gpushare.kube.backoff import Backoff
from protos.deviceplugin.v1beta1 import api_pb2

log = logging.getLogger(__name__)

KUBELET_SOCKET: Final = "kubelet.sock"
POLL_SECONDS: Final = 0.03  # a look costs 2 microseconds
_REGISTER_SECONDS: Final = 10.0  # the kubelet dials back inside, and gives that 10 s
_STREAM_SECONDS: Final = 5.0
_STEADY_SECONDS: Final = 10.0
# gRPC shares connections of one address among channels, and after a refused one it waits for a
# second: a kubelet that had been down for a moment would get its plugin that much later.
_OPTIONS: Final = (("grpc.use_local_subchannel_pool", 1),)

Identity = tuple[int, int]


class Registrar:
    """``why_not`` is empty while the kubelet reads our device list."""

    def __init__(
        self, folder: Path, endpoint: Endpoint, service: Service, cards: NodeCards
    ) -> None:
        self._kubelet = folder / KUBELET_SOCKET
        self._endpoint = endpoint
        self._service = service
        self._cards = cards
        self._logged = ""
        self.why_not = "not registered with the kubelet yet"

    async def run(self) -> None:
        """Until cancelled."""
        backoff = Backoff(0.2, 5.0)
        try:
            while True:
                await self._wait_for_cards()
                kubelet = await self._wait_for_kubelet()
                self.why_not = "registering with the kubelet"
                try:
                    if not self._endpoint.is_there:
                        await self._endpoint.open()
                    streams = self._service.streams_opened
                    await self._register()
                except (OSError, grpc.aio.AioRpcError) as err:
                    self._failed(err)
                    await self._pause(kubelet, backoff.next())
                    continue
                began = asyncio.get_running_loop().time()
                await self._until_read(kubelet, streams)
                await self._while_read(kubelet)
                if asyncio.get_running_loop().time() - began > _STEADY_SECONDS:
                    backoff.reset()
                log.warning("registering again", extra={"why": self.why_not})
                if self._endpoint.is_there:
                    # A kubelet that drops the list at once must not be asked in a loop.
                    await self._pause(kubelet, backoff.next())
        finally:
            await self._endpoint.close()

    async def _wait_for_cards(self) -> None:
        version = self._cards.version
        while self._cards.message is None:
            self.why_not = (
                self._cards.refusal or "no card is known yet, so there is nothing to offer"
            )
            version = await self._cards.changed(version)

    async def _wait_for_kubelet(self) -> Identity:
        while (kubelet := identity_of(self._kubelet)) is None:
            self.why_not = f"the kubelet's socket {self._kubelet} is not there"
            await asyncio.sleep(POLL_SECONDS)
        return kubelet

    async def _register(self) -> None:
        request = api_pb2.RegisterRequest(
            version="v1beta1",
            endpoint=SOCKET_NAME,
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
        self._logged = ""
        metrics.REGISTRATIONS.labels("ok").inc()
        log.info("registered", extra={"resource": RESOURCE_MEMORY})

    def _failed(self, err: Exception) -> None:
        why = err.details() if isinstance(err, grpc.aio.AioRpcError) else str(err)
        metrics.REGISTRATIONS.labels("error").inc()
        self.why_not = f"registration failed: {why}"
        if self._logged != self.why_not:
            log.warning("registration failed", extra={"why": why})
        self._logged = self.why_not

    async def _until_read(self, kubelet: Identity, before: int) -> None:
        """Wait, though not for ever, until the kubelet opens our list; it does so at once."""
        await self._pause(
            kubelet, _STREAM_SECONDS, unless=lambda: self._service.streams_opened > before
        )

    async def _while_read(self, kubelet: Identity) -> None:
        """Return when there is a reason to register again."""
        self.why_not = ""
        while True:
            if identity_of(self._kubelet) != kubelet:
                self.why_not = "the kubelet has restarted"
            elif not self._endpoint.is_there:
                self.why_not = f"our socket {self._endpoint.path} was deleted"
            elif not self._service.streams:
                self.why_not = "the kubelet does not read our device list"
            if self.why_not:
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _pause(
        self, kubelet: Identity, seconds: float, *, unless: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait, but no longer than until the kubelet is another one."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (  # noqa: ASYNC110 - a socket tells nobody that it has appeared
            loop.time() < end and identity_of(self._kubelet) == kubelet and not unless()
        ):
            await asyncio.sleep(POLL_SECONDS)
