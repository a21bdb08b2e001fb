"""Safe reading of files that other programs may have written.

Files are read between two answers to the kubelet, and reading a pipe without a writer, or an
endless file, would block forever.
"""

import errno
import os
import stat
from pathlib import Path


def read_bytes(path: Path, most: int) -> bytes:
    """Return a regular file's content of at most ``most`` bytes; else OSError with its path."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        with os.fdopen(file, "rb", closefd=False) as opened:
            content = opened.read(most + 1)
    finally:
        os.close(file)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes", str(path))
    return content


def shown(name: str | Path) -> str:
    """Return a file's name as valid text: file names need not be UTF-8."""
    return os.fsencode(name).decode(errors="replace")
