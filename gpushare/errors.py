"""Errors of the shared core. Each text says what was wanted, what was found and what to do.

GpushareError
├── QuantityError        an amount that is no Kubernetes quantity, or no whole number of units
├── RequestError         a pod asks for something that cannot be granted anywhere
├── RecordError          an annotation that does not say what it should
├── NoRoom               the chosen node has no card set with room
├── SettingsError        a flag or environment variable that cannot be used
├── RestartNeeded        only a new process can go on
└── ApiError             the API server (or kubelet) refused
    ├── NotFound         404
    ├── Conflict         409
    ├── Gone             410: list again
    ├── NotLeading       nothing was sent: the lease ends before the write must have ended
    ├── TooLarge         the answer, or a line of it, has more bytes than are read
    ├── Unreachable      nothing was sent: no connection came about
    └── OutcomeUnknown   no answer, or one that leaves open whether the write happened
"""

from typing import Final

import msgspec

# What msgspec raises for bytes from outside; a text that is no UTF-8 has an error of its own kind.
UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# What PyYAML lets through beside its own YAMLError: a value that is not what its tag says, a date
# that there is not, a text that is nested too deep.
UNCONSTRUCTABLE: Final = (
    ValueError, LookupError, AttributeError, TypeError, ArithmeticError, RecursionError,
)  # fmt: skip


class GpushareError(Exception):
    """Root of all errors that gpushare raises itself."""


class QuantityError(GpushareError):
    pass


class RequestError(GpushareError):
    pass


class RecordError(GpushareError):
    pass


class NoRoom(GpushareError):
    pass


class SettingsError(GpushareError):
    pass


class RestartNeeded(GpushareError):
    pass


class ApiError(GpushareError):
    """``code`` is the HTTP status, 0 where there was no answer; ``reason`` is Kubernetes' own.

    ``retry_after``: for how many seconds the server asked not to be asked again.
    """

    def __init__(
        self, message: str, *, code: int = 0, reason: str = "", retry_after: float = 0.0
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.retry_after = retry_after


class NotFound(ApiError):
    pass


class Conflict(ApiError):
    pass


class Gone(ApiError):
    pass


class NotLeading(ApiError):
    pass


class TooLarge(ApiError):
    pass


class Unreachable(ApiError):
    pass


class OutcomeUnknown(ApiError):
    pass
