"""Exit codes of the command line, and which error ends with which."""

from typing import Final

import click

from gpushare.errors import ApiError, GpushareError, SettingsError
from gpusharectl.terminal.printable import printable

DONE: Final = 0
NO: Final = 1  # the answer is no: the pod does not fit, there are findings, it was rejected
USAGE: Final = 2  # an unusable flag, file or setting
NOT_REACHED: Final = 3  # the cluster cannot be asked: no connection or a missing right


class No(GpushareError):
    """The answer to the question is no; the text is for the terminal."""


def code_of(err: GpushareError) -> int:
    """Return the exit code of an error that ends a command."""
    if isinstance(err, No):
        return NO
    if isinstance(err, SettingsError):
        return USAGE
    return NOT_REACHED if isinstance(err, ApiError) else USAGE


class Ending(click.ClickException):
    """A GpushareError as click's exception: its text on stderr, our exit code."""

    def __init__(self, err: GpushareError) -> None:
        super().__init__(printable(str(err)))
        self._code = code_of(err)

    @property
    def exit_code(self) -> int:  # type: ignore[override] # click has it on the class
        return self._code
