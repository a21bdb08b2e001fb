"""Wait for a condition, and run parts of a program during a test."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from localcluster.wait import patient


async def eventually(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Return once ``condition()`` holds; raise TimeoutError after patient(``seconds``)."""
    async with asyncio.timeout(patient(seconds)):
        while not condition():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0.002)


@asynccontextmanager
async def running(*parts: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Run parts until the end of the context; raise what one of them has failed with."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result
