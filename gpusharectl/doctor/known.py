"""Read a fact, or say why it cannot be read."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from gpushare.errors import UNDECODABLE, GpushareError, SettingsError
from gpusharectl.doctor.checks.facts import Unknown
from gpusharectl.reach.rights import Lacking

AT_ONCE: Final = 20

T = TypeVar("T")
K = TypeVar("K")


async def known(get: Awaitable[T]) -> T | Unknown:
    """Return the result, or why it is missing. SettingsError is passed on to the user."""
    try:
        return await get
    except SettingsError:
        raise
    except GpushareError as err:
        return Unknown(str(err), lacks_right=isinstance(err, Lacking))
    except UNDECODABLE as err:
        return Unknown(f"the answer cannot be read: {err}")


async def each_known(keys: Iterable[K], ask: Callable[[K], Awaitable[T]]) -> dict[K, T | Unknown]:
    """Call ``ask`` for each key, a few at a time; return the results, or why they are missing."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(key: K) -> T | Unknown:
        async with room:
            return await known(ask(key))

    wanted = list(keys)
    return dict(zip(wanted, await asyncio.gather(*map(one, wanted)), strict=True))
