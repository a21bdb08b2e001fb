"""Exit codes of the command line, and which error ends with which."""

from typing import Final

import click

from gpushare.errors import ApiError, GpushareError
from gpusharectl.terminal.printable import printable

NO: Final = 1  # the answer is no: the pod does not fit, there are findings, it was rejected
USAGE: Final = 2  # an unusable flag, file or setting
NOT_REACHED: Final = 3  # the cluster cannot be asked: no connection or a missing right


class No(GpushareError):
    """The answer to the question is no; the text is for the terminal."""


class Ending(click.ClickException):
    """A GpushareError as click's exception: its text on stderr, our exit code."""

    def __init__(self, err: GpushareError) -> None:
        super().__init__(printable(str(err)))
        code = NOT_REACHED if isinstance(err, ApiError) else USAGE
        self.exit_code = NO if isinstance(err, No) else code  # type: ignore[misc] # click's class has it
