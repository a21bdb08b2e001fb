"""A fact, or why it could not be had."""

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
    """What it gives, or why it gives nothing. SettingsError is the user's to hear."""
    try:
        return await get
    except SettingsError:
        raise
    except GpushareError as err:
        return Unknown(str(err), lacks_right=isinstance(err, Lacking))
    except UNDECODABLE as err:
        return Unknown(f"the answer cannot be read: {err}")


async def each_known(keys: Iterable[K], ask: Callable[[K], Awaitable[T]]) -> dict[K, T | Unknown]:
    """What ``ask`` gives for each, or why it gives nothing; a few at a time."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(key: K) -> T | Unknown:
        async with room:
            return await known(ask(key))

    wanted = list(keys)
    return dict(zip(wanted, await asyncio.gather(*map(one, wanted)), strict=True))
