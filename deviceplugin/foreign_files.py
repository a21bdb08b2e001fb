"""Files that others may have put where ours are: what each is must be known before it is read.

All of it happens between two answers to the kubelet, and a pipe that nobody writes to, or a file
without end, would be read for ever.
"""

import errno
import os
import stat
from pathlib import Path


def read_bytes(path: Path, most: int) -> bytes:
    """The content of a regular file of at most ``most`` bytes; OSError, which names it, if not."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        with os.fdopen(file, "rb", closefd=False) as opened:
            content = opened.read(most + 1)
    finally:
        os.close(file)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes", str(path))
    return content


def shown(name: str | Path) -> str:
    """A name as it can be sent and written: a file's need not be UTF-8, and all texts are."""
    return os.fsencode(name).decode(errors="replace")
