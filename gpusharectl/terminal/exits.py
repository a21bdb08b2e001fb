"""Exit codes of the command line, and which error ends with which."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

from gpushare.errors import UNDECODABLE, ApiError, GpushareError, SettingsError
from gpushare.text.printable import printable

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


@contextmanager
def ending() -> Iterator[None]:
    """Raise Ending for what a command raises about the cluster or its input."""
    try:
        yield
    except GpushareError as err:
        raise Ending(err) from err
    except UNDECODABLE as err:
        text = f"the cluster sent an answer that cannot be read: {err}"
        raise Ending(ApiError(text)) from err
    except UnicodeEncodeError as err:  # arguments are passed on as typed
        text = f"{err.object!r:.200} has bytes that are not text in your locale's encoding"
        raise Ending(SettingsError(text)) from err
