"""Safe reading of files that other programs may have written.

Files are read between two answers to the kubelet, and reading a pipe without a writer, or an
endless file, would block forever.
"""

import errno
import os
import stat
from pathlib import Path
from typing import Final

_LEAST_BYTES: Final = 64 * 1024  # read at once; files of /proc have the size 0


def read_bytes(path: Path, most: int) -> bytes:
    """Return a regular file's content of at most ``most`` bytes; else OSError with its path."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        # Not ``most`` bytes at once: to reserve them takes longer than to read a usual file.
        parts, left, size = [], most + 1, max(status.st_size + 1, _LEAST_BYTES)
        while left and (part := os.read(file, min(left, size))):
            parts.append(part)
            left -= len(part)
    finally:
        os.close(file)
    content = b"".join(parts)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes", str(path))
    return content


def shown(name: str | Path) -> str:
    """Return a file's name as valid text: file names need not be UTF-8."""
    return os.fsencode(name).decode(errors="replace")
