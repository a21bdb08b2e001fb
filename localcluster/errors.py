"""What can go wrong, in words that say what was wanted, what was found and what to do."""


class LocalClusterError(Exception):
    """Base of every error this package raises on purpose; its text is meant for a person."""


class UsageError(LocalClusterError):
    """The caller asked for something that cannot be: a bad name, an unknown component."""


class HostError(LocalClusterError):
    """The machine lacks something; the text names all of it, each with its cure."""


class BuildError(LocalClusterError):
    """A component could not be built; the text ends with the compiler's last lines."""


class StateError(LocalClusterError):
    """The cluster is not in the state that the call needs: not up, already up, half removed."""


class DeadlineError(LocalClusterError):
    """A condition was not met in time; the text says which, what was last seen, and the log."""


class CommandError(LocalClusterError):
    """A command that was run for the cluster failed; the text has its last words."""


class ApiError(LocalClusterError):
    """The API server refused a request.

    `status` is the HTTP status code, 0 when no answer came.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
