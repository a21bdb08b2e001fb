"""Removes everything from a node that a plugin has written there (``--clean``)."""

import errno
import logging
from pathlib import Path

from deviceplugin.cards import state_file
from deviceplugin.cdi.spec_files import FILE_PREFIX
from deviceplugin.lifecycle import handover, instance_lock
from deviceplugin.lifecycle.instance_lock import InstanceLock
from deviceplugin.server.grpc_server import SOCKET_NAME
from deviceplugin.settings import Settings
from gpushare.errors import SettingsError

log = logging.getLogger(__name__)


async def clean(settings: Settings) -> None:
    """Return when no file is left; SettingsError for a file that cannot be deleted.

    Waits for a plugin that still runs. Folders that other programs also use stay, and so does every
    file of another name: the state folder may have been set to one that is shared.
    """
    try:
        async with InstanceLock(settings.state_dir) as lock:
            await lock.held()
            for folder, pattern in (
                (settings.device_plugin_dir, f"{SOCKET_NAME}*"),
                (settings.cdi_dir, f"{FILE_PREFIX}*"),
                (settings.state_dir, f"{state_file.FILE}*"),
                (settings.state_dir, f"{handover.FILE}*"),
                (settings.state_dir, instance_lock.FILE),
            ):
                for path in sorted(folder.glob(pattern)):
                    path.unlink(missing_ok=True)
                    log.info("deleted", extra={"file": str(path)})
            _remove(settings.state_dir)
    except OSError as err:
        raise SettingsError(f"the plugin's files were not all deleted: {err}") from err


def _remove(folder: Path) -> None:
    """Delete an empty folder; one with other files, or a mount point, stays."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        return
    except OSError as err:
        if err.errno not in {errno.EBUSY, errno.ENOTEMPTY}:
            raise
        log.info("kept", extra={"folder": str(folder), "why": err.strerror})
        return
    log.info("deleted", extra={"folder": str(folder)})
