"""The extender's event loop: uvloop, which needs less processor time for a call than asyncio's."""

import uvloop

from gpushare.process.polled_loop import PolledLoop


class EventLoop(uvloop.Loop, PolledLoop):  # type: ignore[misc]  # as uvloop.Loop itself
    """uvloop's loop; the file descriptor of libuv's backend is its epoll object."""

    def __init__(self) -> None:
        super().__init__()
        self.poll(self._get_backend_id())  # type: ignore[attr-defined]
