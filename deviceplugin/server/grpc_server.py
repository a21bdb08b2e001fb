"""The gRPC service that the kubelet calls, on a socket that can be restored when it is deleted.

Each answer takes ANSWER_SECONDS at most: the kubelet admits one pod at a time and waits for
Allocate without a deadline of its own. Device lists are sent as prepared bytes.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import grpc

from deviceplugin import metrics
from deviceplugin.allocation.allocate import Allocations
from deviceplugin.allocation.pre_start import Starts
from deviceplugin.cards.node_cards import NodeCards
from deviceplugin.errors import InvalidRequest, KubeletError, NoMatch, Refused
from deviceplugin.report.refusals import RefusalReport
from deviceplugin.server.kubelet_outage import KubeletOutage
from gpushare.clock import Clock
from gpushare.errors import GpushareError
from protos.deviceplugin.v1beta1 import api_pb2

log = logging.getLogger(__name__)

SOCKET_NAME: Final = "gpushare.sock"
# While one plugin takes over from another, both serve. Kubelets with kubernetes #135437 tell
# plugins of one resource apart by their sockets' names.
_NAMES: Final = (SOCKET_NAME, f"{SOCKET_NAME}.2")
ANSWER_SECONDS: Final = 3.0
_STOP_SECONDS: Final = 1.5
_MOST_TEXT: Final = 2000  # gRPC replaces an error whose text is above 8 KiB
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),  # GetPreferredAllocation names all free units
    ("grpc.so_reuseport", 0),
)

T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]


class Service:
    """Device lists are numbered from 1; ``streams_opened`` is the last number.

    ``times_asked`` counts the questions for our options, by which a kubelet begins to connect.
    ``admitted_at`` is when, on ``clock``, the kubelet last made a call that admits a pod.
    """

    def __init__(
        self,
        *,
        cards: NodeCards,
        allocations: Allocations,
        starts: Starts,
        refusals: RefusalReport,
        outage: KubeletOutage,
        clock: Clock,
    ) -> None:
        self._cards = cards
        self._allocations = allocations
        self._starts = starts
        self._refusals = refusals
        self._outage = outage
        self._clock = clock
        self._answering_now = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._streams: set[int] = set()
        self._lists_end = asyncio.Event()
        self.streams_opened = 0
        self.times_asked = 0
        self.admitted_at = clock.monotonic()

    def handler(self) -> grpc.GenericRpcHandler:
        calls: dict[str, tuple[Any, Callable[[Any], Awaitable[Any]]]] = {
            "GetDevicePluginOptions": (api_pb2.Empty, self._options),
            "GetPreferredAllocation": (api_pb2.PreferredAllocationRequest, self._prefer),
            "Allocate": (api_pb2.AllocateRequest, self._allocate),
            "PreStartContainer": (api_pb2.PreStartContainerRequest, self._pre_start),
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                self._answering(name, answer),
                request_deserializer=request.FromString,
                response_serializer=_serialized,
            )
            for name, (request, answer) in calls.items()
        }
        handlers["ListAndWatch"] = grpc.unary_stream_rpc_method_handler(
            self._list_and_watch,
            request_deserializer=api_pb2.Empty.FromString,
            response_serializer=None,  # the list is bytes already
        )
        return grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers)

    async def quiet(self) -> None:
        """Return when no call is being answered, except device lists, which never end."""
        await self._quiet.wait()

    def end_lists(self) -> None:
        """End every device list that is being read; calls are still answered."""
        self._lists_end.set()
        self._lists_end = asyncio.Event()

    def is_read(self, stream: int) -> bool:
        """Whether that device list is being read now."""
        return stream in self._streams

    @property
    def is_any_read(self) -> bool:
        """Whether any device list is being read now."""
        return bool(self._streams)

    async def _options(self, _: api_pb2.Empty) -> api_pb2.DevicePluginOptions:
        self.times_asked += 1
        return options()

    async def _list_and_watch(self, _: api_pb2.Empty, __: Context) -> AsyncIterator[bytes]:
        self.streams_opened += 1
        stream = self.streams_opened
        self._streams.add(stream)
        log.info("the device list is read", extra={"stream": stream, "open": len(self._streams)})
        ended = asyncio.ensure_future(self._lists_end.wait())
        try:
            sent: bytes | None = None
            version = -1
            while True:
                changed = asyncio.ensure_future(self._cards.changed(version))
                try:
                    await asyncio.wait({changed, ended}, return_when=asyncio.FIRST_COMPLETED)
                    if ended.done():
                        return
                    version = changed.result()
                finally:
                    changed.cancel()
                message = self._cards.next_message()
                if message != sent:
                    sent = message
                    yield message
        finally:
            ended.cancel()
            self._streams.discard(stream)

    async def _prefer(
        self, request: api_pb2.PreferredAllocationRequest
    ) -> api_pb2.PreferredAllocationResponse:
        response = api_pb2.PreferredAllocationResponse()
        for wish in request.container_requests:
            chosen = await self._allocations.prefer(
                wish.available_deviceIDs, list(wish.must_include_deviceIDs), wish.allocation_size
            )
            response.container_responses.add(deviceIDs=chosen)
        return response

    async def _allocate(self, request: api_pb2.AllocateRequest) -> api_pb2.AllocateResponse:
        answers = [
            await self._allocations.allocate(wanted.devices_ids)
            for wanted in request.container_requests
        ]
        return api_pb2.AllocateResponse(container_responses=answers)

    async def _pre_start(
        self, request: api_pb2.PreStartContainerRequest
    ) -> api_pb2.PreStartContainerResponse:
        await self._starts.before_start(request.devices_ids)
        return api_pb2.PreStartContainerResponse()

    def _answering(
        self, call: str, answer: Callable[[Any], Awaitable[T]]
    ) -> Callable[[Any, Context], Awaitable[T]]:
        async def handle(request: Any, context: Context) -> T:
            began = self._clock.monotonic()
            if call in {"GetPreferredAllocation", "Allocate"}:
                self.admitted_at = began
            self._answering_now += 1
            self._quiet.clear()
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    result = await answer(request)
            except Exception as err:  # noqa: BLE001 - the outermost place: the kubelet gets a text
                metrics.CALLS.labels(call, "error").inc()
                self._note(call, err)
                await _abort(call, err, context)
            finally:
                metrics.CALL_SECONDS.labels(call).observe(self._clock.monotonic() - began)
                self._answering_now -= 1
                if not self._answering_now:
                    self._quiet.set()
            metrics.CALLS.labels(call, "ok").inc()
            seconds = self._clock.monotonic() - began
            log.debug("answered", extra={"call": call, "ms": round(seconds * 1000, 1)})
            return result

        return handle

    def _note(self, call: str, err: Exception) -> None:
        """Report the error where it matters beyond the answer."""
        if isinstance(err, Refused):
            self._refusals.refused(err, is_tried_again=call == "PreStartContainer")
        elif call == "Allocate":
            self._outage.allocate_failed(err)


class Endpoint:
    """The socket of the service: one fixed name, taken over and restored as needed.

    After ``open`` the ``path`` is another one if a plugin that still answers has the first.
    """

    def __init__(self, folder: Path, service: Service) -> None:
        self.path = folder / SOCKET_NAME
        self._service = service
        self._server: grpc.aio.Server | None = None
        self._identity: tuple[int, int] | None = None
        self._stopping: set[asyncio.Future[None]] = set()
        self._opened = 0

    @property
    def is_there(self) -> bool:
        """Whether the socket that the kubelet finds is ours."""
        return self._identity is not None and identity_of(self.path) == self._identity

    async def open(self) -> None:
        """Serve on the socket; OSError if that fails.

        gRPC unlinks its path when a server stops, which would delete a later server's socket. So
        each server binds a name of its own, which is then moved to the fixed one.
        """
        if not self._opened:
            paths = [self.path.with_name(name) for name in _NAMES]
            self.path = next((path for path in paths if not is_served(path)), self.path)
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers((self._service.handler(),))
        self._opened += 1
        # Process IDs of two containers are often the same.
        fresh = self.path.with_name(f"{SOCKET_NAME}.{os.urandom(4).hex()}")
        mask = os.umask(0o077)
        try:
            server.add_insecure_port(f"unix:{fresh}")
        except RuntimeError as err:
            raise OSError(f"no socket can be created at {fresh}: {err}") from err
        finally:
            os.umask(mask)
        try:
            await server.start()
            fresh.replace(self.path)
        except BaseException:
            await server.stop(None)
            fresh.unlink(missing_ok=True)
            raise
        self._retire()
        self._server, self._identity = server, identity_of(self.path)
        log.info("serving", extra={"socket": str(self.path)})

    async def close(self) -> None:
        """Stop serving and delete the socket if it is still ours."""
        if self.is_there:
            self.path.unlink(missing_ok=True)
        self._identity = None
        self._retire()
        await asyncio.gather(*self._stopping)

    def _retire(self) -> None:
        """Let the server finish its calls in the background."""
        if self._server is not None:
            task = asyncio.ensure_future(self._stop(self._server))
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)
            self._server = None

    async def _stop(self, server: grpc.aio.Server) -> None:
        # gRPC's own grace period would always be used in full: a device list never ends.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await self._service.quiet()
        await server.stop(None)


def options() -> api_pb2.DevicePluginOptions:
    return api_pb2.DevicePluginOptions(
        pre_start_required=True, get_preferred_allocation_available=True
    )


def identity_of(path: Path) -> tuple[int, int] | None:
    """Return what distinguishes a socket from its replacement; None without a socket."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


def is_served(path: Path) -> bool:
    """Whether a process listens: a killed plugin leaves its socket behind."""
    with socket.socket(socket.AF_UNIX) as knock:
        knock.setblocking(False)
        try:
            knock.connect(str(path))
        except BlockingIOError:
            return True  # busy, so alive
        except OSError:
            return False
    return True


def _serialized(message: Any) -> bytes:
    written: bytes = message.SerializeToString()
    return written


async def _abort(call: str, err: Exception, context: Context) -> NoReturn:
    if isinstance(err, TimeoutError):
        code, text = grpc.StatusCode.DEADLINE_EXCEEDED, f"no answer within {ANSWER_SECONDS:g} s"
    elif isinstance(err, InvalidRequest):
        code, text = grpc.StatusCode.INVALID_ARGUMENT, str(err)
    elif isinstance(err, NoMatch):
        code, text = grpc.StatusCode.NOT_FOUND, str(err)
    elif isinstance(err, KubeletError):
        code, text = grpc.StatusCode.UNAVAILABLE, str(err)
    elif isinstance(err, GpushareError):
        code, text = grpc.StatusCode.FAILED_PRECONDITION, str(err)
    else:
        code, text = grpc.StatusCode.INTERNAL, f"internal error: {err!r}"
        log.error("unexpected error", extra={"call": call}, exc_info=err)
    text = text[:_MOST_TEXT]
    log.warning("refused", extra={"call": call, "why": text})
    await context.abort(code, f"gpushare: {text}")
