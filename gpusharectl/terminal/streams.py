"""Run a program so that output that cannot be written is an error of one line."""

import codecs
import errno
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from io import TextIOWrapper
from typing import Final

_OF_OUTPUT: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}
_PLAIN: Final = "plain signs"
# Bars in encodings without block characters.
_SIGNS: Final = {
    "█": "#", "▓": "=", "▒": "+", "▚": "%", "░": "~", "·": ".", "▕": "|", "▏": "|",
    "─": "-", "├": "|", "└": "`", "…": "~", "✓": "+", "✗": "x",
}  # fmt: skip


def run(program: Callable[[], object]) -> None:
    """Run it, and exit with one line on stderr if its output cannot be written."""
    codecs.register_error(_PLAIN, _in_plain_signs)
    if sys.stdout is None:  # the shell closed it
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=_PLAIN)
    try:
        try:
            program()
        finally:
            sys.stdout.flush()  # a failure after this function is a stack trace
    except OSError as err:
        sys.exit(_exit_code(err))


def _in_plain_signs(err: UnicodeError) -> tuple[str, int]:
    if not isinstance(err, UnicodeEncodeError):
        raise err
    return "".join(_SIGNS.get(each, "?") for each in err.object[err.start : err.end]), err.end


def _exit_code(err: OSError) -> int:
    """Print why, and discard what is still buffered, so that Python does not try again."""
    from gpusharectl.terminal.exits import NO, USAGE  # noqa: PLC0415 - --help does not need it

    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    if err.errno == errno.EPIPE:
        return NO
    text = str(err)
    if err.filename is None and err.errno in _OF_OUTPUT:
        text = f"the output cannot be written: {err.strerror}"
    sys.stderr.write(f"Error: {text}\n")
    return USAGE
