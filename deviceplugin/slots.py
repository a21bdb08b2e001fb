"""The inventory on disk: which index and tag belong to which UUID, over restarts.

Registration cannot wait for the API server, where the same text stands as the node's annotation.
"""

import logging
import os
from pathlib import Path

from gpushare import inventory
from gpushare.cards import Inventory
from gpushare.errors import RecordError

log = logging.getLogger(__name__)


class SlotFile:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "inventory.json"

    def read(self) -> Inventory | None:
        """What was written last; None, with a log line, where nothing usable is there."""
        try:
            return inventory.decode(self._path.read_text())
        except FileNotFoundError:
            log.info("no inventory from before", extra={"file": str(self._path)})
        except (OSError, UnicodeDecodeError, RecordError) as err:
            log.warning(
                "inventory from before cannot be read, the node's annotation will do",
                extra={"file": str(self._path), "why": str(err)},
            )
        return None

    def write(self, value: Inventory) -> None:
        """Replace the file in one step; OSError if that cannot be done."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_name(self._path.name + ".new")
        with fresh.open("w") as file:
            file.write(inventory.encode(value))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
