"""Define the core's errors. Their texts say what was wanted and found, and what to do."""

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
    """An amount is not a Kubernetes quantity, or not a whole number of units."""


class RequestError(GpushareError):
    """A pod requests something that no node can satisfy."""


class QuotaError(GpushareError):
    """The quota of a namespace cannot be read."""


class RecordError(GpushareError):
    """An annotation cannot be read."""


class NoRoom(GpushareError):
    """The chosen node has too few cards with enough free units."""


class SettingsError(GpushareError):
    """A flag, an environment variable or a configuration file cannot be used."""


class RestartNeeded(GpushareError):
    """Only a new process can continue."""


class ApiError(GpushareError):
    """A request to the API server or the kubelet failed.

    ``code`` is the HTTP status, 0 without a response; ``reason`` is that of Kubernetes.
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
    """The object does not exist (404)."""


class Conflict(ApiError):
    """The object is in another state than the write requires (409)."""


class Replaced(Conflict):
    """The object is another one of the same name: its uid differs."""


class Gone(ApiError):
    """The list or watch has expired: list again (410)."""


class NotLeading(ApiError):
    """Nothing was sent, because the write could outlast the lease."""


class TooLarge(ApiError):
    """The response, or a line of it, exceeds the limit."""


class Unreachable(ApiError):
    """There is no connection, and no write was sent."""


class OutcomeUnknown(ApiError):
    """It is unknown whether the write happened."""
