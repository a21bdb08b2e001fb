"""A node's driver as a driver container installs it: a root with libraries and device nodes.

The device nodes have NVIDIA's numbers and no driver. Opening one fails with ENXIO if the
container's device filter allows it, and with EPERM if not.
"""

import os
import platform
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from localcluster.errors import HostError
from localcluster.nvml import SONAME, CardSpec

ROOT: Final = "/run/nvidia/driver"
LIBRARIES: Final = f"usr/lib/{platform.machine()}-linux-gnu"
VERSION: Final = "999.1"

LINK: Final = "driver-root"
"""Name of the link in a node's folder that leads to a real driver's root, where it has one."""

# Linux' Documentation/admin-guide/devices.txt has 195; the unified memory's is chosen at load time.
_CARDS_MAJOR: Final = 195
_CONTROL_MINOR: Final = 255
_UVM_MAJOR: Final = 510
# Only looked for by name, never loaded.
_PLACEHOLDERS: Final = ("libcuda", "libnvidia-ptxjitcompiler")


def install(root: Path, library: Path, cards: Iterable[CardSpec]) -> None:
    """Create the driver's root for these cards; `library` is the folder of the NVML stand-in."""
    libraries = root / LIBRARIES
    libraries.mkdir(parents=True)
    _versioned(libraries, "libnvidia-ml").write_bytes((library / SONAME).read_bytes())
    for name in _PLACEHOLDERS:
        _versioned(libraries, name).write_text("no library\n", encoding="utf-8")
    smi = root / "usr/bin/nvidia-smi"
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\n", encoding="utf-8")
    smi.chmod(0o755)
    (root / "dev").mkdir()
    for name, (major, minor) in device_numbers(cards).items():
        path = root / "dev" / name
        os.mknod(path, stat.S_IFCHR, os.makedev(major, minor))
        path.chmod(0o666)


def nvml_library(root: Path) -> Path:
    """Return the driver's libnvidia-ml.so.1 below its root; raise HostError if it is missing."""
    for folder in (LIBRARIES, "usr/lib64", "usr/lib"):
        if (root / folder / SONAME).exists():
            return root / folder / SONAME
    raise HostError(f"no {SONAME} of NVIDIA's driver below {root}; name the driver's root")


def device_numbers(cards: Iterable[CardSpec]) -> dict[str, tuple[int, int]]:
    """Return major and minor number of each of the driver's device nodes, by name."""
    found = {
        "nvidiactl": (_CARDS_MAJOR, _CONTROL_MINOR),
        "nvidia-uvm": (_UVM_MAJOR, 0),
        "nvidia-uvm-tools": (_UVM_MAJOR, 1),
    }
    for place, card in enumerate(cards):
        minor = place if card.minor is None else card.minor
        found[f"nvidia{minor}"] = (_CARDS_MAJOR, minor)
    return found


def _versioned(folder: Path, name: str) -> Path:
    path = folder / f"{name}.so.{VERSION}"
    (folder / f"{name}.so.1").symlink_to(path.name)
    return path
