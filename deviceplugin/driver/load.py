"""Identifies a load of the driver: the machine's boot, and the load of the kernel module in it.

The number of a folder in sysfs is given once (kernfs_new_node in fs/kernfs/dir.c), so the folder of
a module that was loaded again has another.
"""

from pathlib import Path
from typing import Final

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
MODULE: Final = Path("/sys/module/nvidia")


def current_load(boot_id: Path = BOOT_ID, module: Path = MODULE) -> str:
    """Return a text that differs after each boot and each load of the driver.

    A part that cannot be read is empty, so that its change is not noticed.
    """
    try:
        boot = boot_id.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        boot = ""
    try:
        loaded = str(module.stat().st_ino)
    except OSError:
        loaded = ""
    return f"{boot}/{loaded}"
