"""A request's body that asks whether it may still go when it goes."""

from collections.abc import Callable

import aiohttp
from aiohttp.abc import AbstractStreamWriter

from gpushare.errors import ApiError


class Body(aiohttp.BytesPayload):
    """Asks ``may_go`` at the moment at which it is sent.

    Before Python 3.12 aiohttp sends a body in a task of its own, and on a new connection that comes
    after its handshake: a process that is stopped in between would send it on waking.
    """

    def __init__(self, value: bytes, may_go: Callable[[], object] | None) -> None:
        super().__init__(value, content_type="application/json")
        self._may_go = may_go
        self.refusal: ApiError | None = None

    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        if self._may_go is not None:
            try:
                self._may_go()
            except ApiError as err:
                self.refusal = err
                raise
        await super().write_with_length(writer, content_length)
