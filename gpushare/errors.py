"""Define the core's errors. Their texts say what was wanted and found, and what to do.

GpushareError
├── QuantityError        an invalid Kubernetes quantity, or not a whole number of units
├── RequestError         a pod requests something that no node can satisfy
├── RecordError          an annotation that cannot be read
├── NoRoom               the chosen node has too few cards with enough free units
├── SettingsError        a flag, variable or file that cannot be used
├── RestartNeeded        only a new process can continue
└── ApiError             a request to the API server or kubelet failed
    ├── NotFound         404
    ├── Conflict         409
    ├── Gone             410: list again
    ├── NotLeading       nothing was sent: the write could outlast the lease
    ├── TooLarge         the response, or a line of it, exceeds the limit
    ├── Unreachable      nothing was sent: there is no connection
    └── OutcomeUnknown   it is unknown whether the write happened
"""

from typing import Final

import msgspec

# What msgspec raises for invalid input; invalid UTF-8 has its own error.
UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# What PyYAML raises besides its own YAMLError: for values that do not fit their tags, for invalid
# dates, and for texts that are nested too deeply.
UNCONSTRUCTABLE: Final = (
    ValueError, LookupError, AttributeError, TypeError, ArithmeticError, RecursionError,
)  # fmt: skip


class GpushareError(Exception):
    """The base class of all errors that gpushare raises itself."""


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
    """``code`` is the HTTP status, 0 without a response; ``reason`` is that of Kubernetes.

    ``retry_after``: the seconds that the server demands before the next request.
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
