"""Detects whether CDI files are read on this node.

A runtime that resolves CDI names watches its folders and reads a specification again as soon as it
changes (github.com/cncf-tags/container-device-interface, pkg/cdi/cache.go). Reading changes a
file's access time. An unread file is no proof of the contrary: a runtime starts to watch a folder
that did not exist at its own start only when a container asks it for a CDI device.
"""

import logging
import os
import time
from pathlib import Path
from typing import Final

from deviceplugin.cdi.rules import Probe
from gpushare.contract import CDI_PROBE_KIND

log = logging.getLogger(__name__)

WAIT_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.02
_OLD_NS: Final = 86_400 * 2 * 10**9  # relatime updates an access time that is before the change
_FILE: Final = "gpushare-probe.json"
_SPEC: Final = (
    f'{{"cdiVersion":"0.6.0","kind":"{CDI_PROBE_KIND}","devices":[{{"name":"none",'
    f'"containerEdits":{{"env":["GPUSHARE_PROBE=1"]}}}}]}}'
)


def probe(folder: Path, seconds: float = WAIT_SECONDS) -> Probe:
    """Return whether a new file in ``folder`` is read within ``seconds``; blocks that long.

    UNKNOWN where the folder cannot be written or its file system has no access times.
    """
    path = folder / _FILE
    fresh = path.with_suffix(".new")  # not .json: no runtime reads it
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            before = _write(fresh)
            fresh.read_bytes()
            after = fresh.stat()
            # Anybody may have read the file before we did: then its access time has moved already.
            if after.st_atime_ns == before < after.st_mtime_ns - _OLD_NS // 2:
                log.info("the CDI folder has no access times", extra={"folder": str(folder)})
                return Probe.UNKNOWN
            before = _write(fresh)
            fresh.replace(path)
            return Probe.READ if _moves(path, before, seconds) else Probe.UNREAD
        finally:
            fresh.unlink(missing_ok=True)
            path.unlink(missing_ok=True)
    except OSError as err:
        log.warning("cannot detect whether CDI files are read", extra={"why": str(err)})
        return Probe.UNKNOWN


def _write(path: Path) -> int:
    """Write the file and return the access time that it has until it is read, in ns."""
    path.write_text(_SPEC)
    changed = path.stat().st_mtime_ns
    os.utime(path, ns=(changed - _OLD_NS, changed))
    return path.stat().st_atime_ns


def _moves(path: Path, before: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while path.stat().st_atime_ns == before:
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
