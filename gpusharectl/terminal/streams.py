"""What a program is started with and may be bad: streams, their encoding and size, a home."""

import codecs
import errno
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TextIO

from gpusharectl.terminal.exits import NO, USAGE
from gpusharectl.terminal.printable import printable

_OF_OUTPUT: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}
_SIZE: Final = re.compile("[1-9][0-9]{0,3}")
_PLAIN: Final = "plain signs"
# What a bar is drawn with, where the terminal's encoding has no such signs.
_SIGNS: Final = {
    "█": "#", "▓": "=", "▒": "+", "░": "~", "·": ".", "▕": "|", "▏": "|",
    "─": "-", "├": "|", "└": "`", "…": "~", "✓": "+", "✗": "x",
}  # fmt: skip


def run(program: Callable[[], object]) -> None:
    """Run it to its end, and end with one line where its output cannot be written."""
    _open_what_is_closed()
    codecs.register_error(_PLAIN, _in_plain_signs)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors=_PLAIN)  # type: ignore[union-attr] # nothing has put others there
    for name in ("COLUMNS", "LINES"):
        if not _SIZE.fullmatch(os.environ.get(name, "1")):
            del os.environ[name]  # rich would draw nothing in 0 columns
    try:
        Path.home()
    except RuntimeError:  # the client library asks for it and does without
        os.environ["HOME"] = os.sep
    try:
        try:
            program()
        finally:
            sys.stdout.flush()  # a failure after this function is a stack trace
    except OSError as err:
        sys.exit(_given_up(err))


def _open_what_is_closed() -> None:
    """Let no file of ours become a stream by its number. Output that has nowhere to go fails."""
    nothing = Path(os.devnull)
    if sys.stdin is None:
        sys.stdin = nothing.open(encoding="utf-8")
    if sys.stdout is None:
        unwritable = os.open(nothing, os.O_RDONLY)
        sys.stdout = os.fdopen(unwritable, "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = nothing.open("w", encoding="utf-8")


def _in_plain_signs(err: UnicodeError) -> tuple[str, int]:
    if not isinstance(err, UnicodeEncodeError):
        raise err
    return "".join(_SIGNS.get(each, "?") for each in err.object[err.start : err.end]), err.end


def _given_up(err: OSError) -> int:
    """Say why, and let the streams take what they still have to nowhere."""
    text = str(err)
    if err.filename is None and err.errno in _OF_OUTPUT:
        text = f"the output cannot be written: {err.strerror}"
    _to_nowhere(sys.stdout)
    if err.errno == errno.EPIPE:
        return NO
    with suppress(OSError):
        sys.stderr.write(f"Error: {printable(text)}\n")
        sys.stderr.flush()
    _to_nowhere(sys.stderr)
    return USAGE


def _to_nowhere(stream: TextIO) -> None:
    """Let a stream that cannot be written take what it still has: Python tries that at its end."""
    try:
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
