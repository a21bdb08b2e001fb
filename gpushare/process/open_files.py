"""Lets a program open as many files as its container may."""

import resource
from contextlib import suppress
from typing import Final

# Each connection is a file. containerd 2 starts containers with the kernel's usual soft limit,
# 1024. The hard limit can be a billion, which some libraries take for a number of files to close.
MOST: Final = 65_536


def raise_limit() -> None:
    """Raise the soft limit on open files to the hard one, or to MOST."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # the program works with fewer, within its limits
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
