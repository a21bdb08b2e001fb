"""Hold silent connections open until the input ends; print how many.

    python -m tests.trials.half_open PORT SOURCE,... TARGET...

Each source address has as many to each target as a listener allows one unknown client. A closed
one is opened again.
"""

import asyncio
import sys
from collections.abc import Sequence
from typing import Final

from gpushare.http_server.handshakes import MAX_PER_UNTRUSTED

AGAIN_SECONDS: Final = 1.0  # else opening them would use the processor that is measured


class HalfOpen:
    """``opened`` counts the connections so far."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.opened = 0

    async def hold(self, sources: Sequence[str], targets: Sequence[str]) -> None:
        """Hold the connections until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(MAX_PER_UNTRUSTED):
                for source in sources:
                    for target in targets:
                        group.create_task(self._again_and_again(source, target))

    async def _again_and_again(self, source: str, target: str) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection(
                    target, self._port, local_addr=(source, 0)
                )
            except OSError:
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            self.opened += 1
            try:
                await reader.read()
            except OSError:
                pass
            finally:
                writer.close()
            await asyncio.sleep(AGAIN_SECONDS)


async def main() -> int:
    """Hold them; return the exit code."""
    port, sources, targets = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3:]
    half_open = HalfOpen(port)
    holding = asyncio.create_task(half_open.hold(sources, targets))
    await asyncio.to_thread(sys.stdin.read)
    holding.cancel()
    print(half_open.opened)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
