"""Sort what waits by the order in which it would get room, one after the other (pure)."""

from collections import Counter
from collections.abc import Callable, Generator, Iterable
from typing import Generic, NamedTuple, TypeVar

from gpushare.quota.order import OrderPolicy, QueueOrder, Standing

T = TypeVar("T")


class Waiting(NamedTuple, Generic[T]):
    """``units`` are what it will use once it has room."""

    standing: Standing
    units: int
    what: T


def in_order(
    entries: Iterable[Waiting[T]],
    policy: OrderPolicy,
    share_of: Callable[[str, int], float],
) -> Generator[None, None, list[Waiting[T]]]:
    """Return all entries in order, in short steps.

    ``share_of`` returns which part of its quota a namespace uses if it uses so many units more than
    now. Each entry is taken to use its units when it is the turn of the next one.
    """
    queues: dict[str, list[Waiting[T]]] = {}
    for each in entries:
        queues.setdefault(each.standing.namespace, []).append(each)
        yield
    virtual: Counter[str] = Counter()
    order: QueueOrder[list[Waiting[T]]] = QueueOrder(
        policy, lambda name: share_of(name, virtual[name])
    )
    for queue in queues.values():
        # Within a namespace the order does not depend on what is used. The last one comes first.
        queue.sort(key=lambda each: each.standing.age, reverse=True)
        order.put(queue[-1].standing, queue)
        yield
    found: list[Waiting[T]] = []
    while (first := order.pop()) is not None:
        queue = first[1]
        found.append(each := queue.pop())
        virtual[each.standing.namespace] += each.units
        if queue:
            order.put(queue[-1].standing, queue)
        yield
    return found
