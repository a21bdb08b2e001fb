"""Read a fact, or say why it cannot be read."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from gpushare.errors import UNDECODABLE, GpushareError, SettingsError
from gpusharectl.doctor.facts.cluster import Unknown
from gpusharectl.reach.at_once import each_of
from gpusharectl.reach.rights import Lacking

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
    return await each_of(keys, lambda key: known(ask(key)))
