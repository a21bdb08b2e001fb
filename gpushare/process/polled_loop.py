"""An event loop that says in the middle of a computation whether anything has arrived."""

import asyncio
import select
import selectors


class PolledLoop:
    """A mixin for an event loop that waits with epoll.

    ``has_arrivals`` costs about a microsecond, which is much less than a turn of the loop.
    """

    def poll(self, epoll: int) -> None:
        """Set the file descriptor of the loop's epoll object."""
        self._arrivals = select.poll()
        self._arrivals.register(epoll, select.POLLIN)

    def has_arrivals(self) -> bool:
        """Return whether a file that the loop watches is ready for what somebody waits for."""
        return bool(self._arrivals.poll(0))


class SelectorLoop(asyncio.SelectorEventLoop, PolledLoop):
    """The event loop of the standard library."""

    def __init__(self) -> None:
        selector = selectors.EpollSelector()
        super().__init__(selector)
        self.poll(selector.fileno())


def has_arrivals() -> bool:
    """Return whether anything has arrived for the running loop; False if that cannot be known."""
    loop = asyncio.get_running_loop()
    return isinstance(loop, PolledLoop) and loop.has_arrivals()
