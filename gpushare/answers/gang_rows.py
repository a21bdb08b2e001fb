"""Write one row for the Pending pods of a gang, which all wait for the same (pure)."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from gpushare.text.counted import counted


class Row(Protocol):
    """What is shown of a Pending pod, or of several that are alike; ``gang`` may be empty."""

    @property
    def namespace(self) -> str: ...
    @property
    def gang(self) -> str: ...


T = TypeVar("T", bound=Row)


def rows(found: Iterable[T], may_join: Callable[[T], bool] = lambda _: True) -> list[list[T]]:
    """Return the members of each gang together, where its first one is.

    Others are by themselves, and those that may not join.
    """
    made: list[list[T]] = []
    gangs: dict[tuple[str, str], list[T]] = {}
    for each in found:
        key, is_member = (each.namespace, each.gang), bool(each.gang) and may_join(each)
        if is_member and key in gangs:
            gangs[key].append(each)
            continue
        made.append([each])
        if is_member:
            gangs[key] = made[-1]
    return made


def subject(gang: str, pods: int) -> str:
    return f"Gang {gang} ({counted(pods, 'pod')})"


def text(of_gang: str, own: Sequence[tuple[str, str]]) -> str:
    """Return what is said of a gang; ``own`` has names of pods, and what is said of each besides.

    Only the first different one is told: usually all have the same.
    """
    first = next(((name, said) for name, said in own if said), None)
    return of_gang if first is None else f"{of_gang} Pod {first[0]}: {first[1]}".lstrip()


def counts(found: Sequence[Sequence[T]]) -> str:
    """Return how many pods of these rows are Pending, and how many of them are in gangs."""
    members = [len(row) for row in found if row[0].gang]
    pods = counted(sum(map(len, found)), "Pending pod")
    return f"{pods}, {sum(members)} in {counted(len(members), 'gang')}" if members else pods
