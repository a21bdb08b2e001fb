"""Takes everything off a node that a plugin has put there: its last act, ``--clean``."""

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
    """Return when nothing of ours is left; SettingsError for a file that cannot be deleted.

    Waits for a plugin that still runs. Folders that others use too stay, and so does every file of
    another name: the folder for our own state may have been set to one that is shared.
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
        raise SettingsError(f"the node is not clean: {err}") from err


def _remove(folder: Path) -> None:
    """Delete an empty folder; one that others use, or a file system of its own, stays."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        return
    except OSError as err:
        if err.errno not in {errno.EBUSY, errno.ENOTEMPTY}:
            raise
        log.info("left", extra={"folder": str(folder), "why": err.strerror})
        return
    log.info("deleted", extra={"folder": str(folder)})
