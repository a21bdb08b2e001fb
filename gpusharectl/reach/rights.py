"""Name the missing Kubernetes right in an error, in kubectl's words."""

from dataclasses import dataclass
from http import HTTPStatus

from gpushare.errors import ApiError


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
    """A right is missing; ``rights`` are those that the request needs."""

    def __init__(self, *rights: Right, code: int = HTTPStatus.FORBIDDEN) -> None:
        wanted = " and ".join(right.text for right in rights)
        checks = "; ".join(right.check for right in rights)
        super().__init__(f"you lack the right to {wanted} ({checks})", code=code)
        self.rights = rights


LIST_NODES = Right("list", "nodes", is_namespaced=False)
LIST_PODS = Right("list", "pods")


def named(err: ApiError, *rights: Right) -> ApiError:
    """Return the error to raise instead; for a rejected request one that names the right."""
    if err.code == HTTPStatus.UNAUTHORIZED:
        return ApiError(
            "the API server cannot authenticate you: the credentials in the kubeconfig are "
            f"missing or expired ({err})",
            code=err.code,
        )
    return Lacking(*rights) if err.code == HTTPStatus.FORBIDDEN else err
