"""The kubelet's checkpoint on disk, parsed again only when the kubelet has replaced it."""

from pathlib import Path
from typing import Final

from deviceplugin.errors import CheckpointError
from deviceplugin.foreign_files import read_bytes
from deviceplugin.kubelet.checkpoint import Entry, parse

# Ten times what the largest list of devices makes of it. It is read between two calls of the
# kubelet, so one without end must not be begun.
MAX_BYTES: Final = 32 << 20


class CheckpointFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._version: tuple[int, int, int] | None = None
        self._entries: tuple[Entry, ...] = ()

    def read(self) -> tuple[Entry, ...]:
        """The entries of our resource as they are now; none where there is no checkpoint yet.

        Raises CheckpointError if the file cannot be read, is not a regular file, or is longer than
        any list of devices makes it.
        """
        try:
            status = self._path.stat()
            version = (status.st_ino, status.st_size, status.st_mtime_ns)
            if version != self._version:
                self._entries = parse(read_bytes(self._path, MAX_BYTES))
                self._version = version
        except FileNotFoundError:
            self._version, self._entries = None, ()
        except OSError as err:
            raise CheckpointError(f"the kubelet's device checkpoint: {err}") from err
        return self._entries
