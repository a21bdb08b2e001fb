"""Errors; their texts say what was wanted, what was found and what to do."""


class LocalClusterError(Exception):
    """Base of every error that this package raises on purpose. A person reads its text."""


class UsageError(LocalClusterError):
    """The caller asked for something impossible: a bad name, an unknown component."""


class HostError(LocalClusterError):
    """The machine lacks something; the text lists everything missing, each with its cure."""


class BuildError(LocalClusterError):
    """A component could not be built; the text ends with the compiler's last lines."""


class StateError(LocalClusterError):
    """The cluster is not in the state that the call needs: not up, already up, half removed."""


class DeadlineError(LocalClusterError):
    """A condition was not met in time; the text has the condition, the last state, and the log."""


class CommandError(LocalClusterError):
    """A command that was run for the cluster failed; the text has the end of its output."""


class ApiError(LocalClusterError):
    """The API server refused a request.

    `status` is the HTTP status code, 0 when no answer came.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
