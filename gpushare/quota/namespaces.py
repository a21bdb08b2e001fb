"""Namespaces as far as they limit or order pods: their labels, quotas and end."""

from collections.abc import Container, Iterator, Mapping
from typing import Final

import msgspec

from gpushare.contract import ANNOTATION_QUOTA, LABEL_QUEUE
from gpushare.errors import QuotaError
from gpushare.quota.quota import Quota, parse

QUEUED: Final = "true"


class Metadata(msgspec.Struct, rename="camel", frozen=True):
    name: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None


class NamespaceObject(msgspec.Struct, frozen=True):
    """What is read of the API server's Namespace."""

    metadata: Metadata = Metadata()


class Namespace(msgspec.Struct, frozen=True):
    """``quota`` is None without a limit, or if ``problem`` says why it cannot be read."""

    name: str
    is_queued: bool = False
    quota: Quota | None = None
    problem: str = ""
    is_ending: bool = False


class Namespaces:
    """Keeps the namespaces that say something; ``version`` increases when one says another thing.

    ``why_unknown`` says why they cannot be read now: what was read last holds, and nothing is
    limited if they were never read.
    """

    def __init__(self) -> None:
        self.version = 0
        self.why_unknown = ""
        self._known: dict[str, Namespace] = {}

    def __iter__(self) -> Iterator[Namespace]:
        return iter(list(self._known.values()))

    def get(self, name: str) -> Namespace:
        return self._known.get(name) or Namespace(name)

    def is_queued(self, name: str) -> bool:
        found = self._known.get(name)
        return found is not None and found.is_queued

    def scope(self, name: str) -> str:
        """Return the name of a limited namespace; empty for all others, whose pods are alike."""
        found = self.get(name)
        is_limited = found.quota is not None or found.problem or found.is_ending
        return name if is_limited else ""

    def put(self, namespace: Namespace) -> None:
        name = namespace.name
        if self.get(name) == namespace:
            return
        self.version += 1
        if namespace == Namespace(name):
            del self._known[name]
        else:
            self._known[name] = namespace

    def drop(self, name: str) -> None:
        self.put(Namespace(name))

    def keep_only(self, names: Container[str]) -> None:
        """Drop all others: the namespaces were listed."""
        self.why_unknown = ""
        for name in [name for name in self._known if name not in names]:
            self.drop(name)


def namespace_of(found: NamespaceObject) -> Namespace:
    """Return what a Namespace says."""
    meta = found.metadata
    text, quota, problem = (meta.annotations or {}).get(ANNOTATION_QUOTA), None, ""
    if text is not None:
        try:
            quota = parse(text)
        except QuotaError as err:
            problem = str(err)
    return Namespace(
        meta.name,
        (meta.labels or {}).get(LABEL_QUEUE) == QUEUED,
        quota,
        problem,
        meta.deletion_timestamp is not None,
    )
