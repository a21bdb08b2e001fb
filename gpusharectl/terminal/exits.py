"""What the command line ends with, and how an error becomes such an end."""

from typing import Final

import click

from gpushare.errors import ApiError, GpushareError, SettingsError
from gpusharectl.terminal.printable import printable

DONE: Final = 0
NO: Final = 1  # the answer is no: the pod does not fit, there are findings, it was refused
USAGE: Final = 2  # a flag, a file or a setting that cannot be used
NOT_REACHED: Final = 3  # the cluster cannot be asked: no connection, no right


class No(GpushareError):
    """The question was answered, and the answer is no; the text is for the terminal."""


def code_of(err: GpushareError) -> int:
    """The exit code of an error that ends a command."""
    if isinstance(err, No):
        return NO
    if isinstance(err, SettingsError):
        return USAGE
    return NOT_REACHED if isinstance(err, ApiError) else USAGE


class Ending(click.ClickException):
    """Click's own form of an error of ours: its text on stderr, our code."""

    def __init__(self, err: GpushareError) -> None:
        super().__init__(printable(str(err)))
        self._code = code_of(err)

    @property
    def exit_code(self) -> int:  # type: ignore[override] # click has it on the class
        return self._code
