"""Name the missing Kubernetes right in an error, in kubectl's words."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from gpushare.errors import ApiError

ASK_FOR_SERVER: Final = "Your administrator can give you the address for GPUSHARE_SERVER."


@dataclass(frozen=True, slots=True)
class Right:
    """``namespace`` is empty for all namespaces, and if not ``is_namespaced``."""

    verb: str
    resource: str
    namespace: str = ""
    is_namespaced: bool = True

    @property
    def text(self) -> str:
        if not self.is_namespaced:
            return f"{self.verb} {self.resource}"
        where = f"namespace {self.namespace}" if self.namespace else "all namespaces"
        return f"{self.verb} {self.resource} in {where}"

    @property
    def check(self) -> str:
        """Return the command that checks for it."""
        where = f" -n {self.namespace}" if self.namespace else " -A" if self.is_namespaced else ""
        return f"kubectl auth can-i {self.verb} {self.resource}{where}"


class Lacking(ApiError):
    """A right is missing; ``rights`` are those that the request needs.

    ``short`` is the error without the commands that check for them.
    """

    def __init__(self, *rights: Right) -> None:
        self.rights = rights
        self.short = f"you lack the right to {' and '.join(right.text for right in rights)}"
        checks = "; ".join(right.check for right in rights)
        super().__init__(f"{self.short} ({checks})", code=HTTPStatus.FORBIDDEN)

    @property
    def without_extender(self) -> str:
        """Return why no extender can be asked, and what to do."""
        return f"{self.short}. {ASK_FOR_SERVER}"


@contextmanager
def needing(*rights: Right) -> Iterator[None]:
    """Raise Lacking with these rights if the API server forbids the request."""
    try:
        yield
    except ApiError as err:
        if err.code == HTTPStatus.FORBIDDEN:
            raise Lacking(*rights) from err
        raise
