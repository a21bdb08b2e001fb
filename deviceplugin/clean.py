"""Takes everything off a node that a plugin has put there: its last act, ``--clean``."""

import errno
import logging
import shutil
from pathlib import Path

from deviceplugin.cdi import FILE_PREFIX
from deviceplugin.instance_lock import InstanceLock
from deviceplugin.server import SOCKET_NAME
from deviceplugin.settings import Settings
from gpushare.errors import SettingsError

log = logging.getLogger(__name__)


async def clean(settings: Settings) -> None:
    """Return when nothing is left; SettingsError for a file that cannot be deleted.

    Waits for a plugin that still runs. Folders that others use too stay.
    """
    try:
        async with InstanceLock(settings.state_dir):
            for folder, pattern in (
                (settings.device_plugin_dir, f"{SOCKET_NAME}*"),
                (settings.cdi_dir, f"{FILE_PREFIX}*"),
            ):
                for path in sorted(folder.glob(pattern)):
                    path.unlink(missing_ok=True)
                    log.info("deleted", extra={"file": str(path)})
            _remove(settings.state_dir)
    except OSError as err:
        raise SettingsError(f"the node is not clean: {err}") from err


def _remove(folder: Path) -> None:
    """Delete a folder; one that is a file system of its own stays, empty."""
    for path in folder.glob("*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    try:
        folder.rmdir()
    except FileNotFoundError:
        return
    except OSError as err:
        if err.errno != errno.EBUSY:
            raise
    log.info("deleted", extra={"folder": str(folder)})
