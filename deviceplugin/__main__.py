"""Starts the device plugin: flags and environment to settings, then run."""

import asyncio
import sys

from deviceplugin import settings
from deviceplugin.app import run
from deviceplugin.nvml import Nvml
from gpushare.errors import GpushareError
from gpushare.telemetry import logs


def main() -> None:
    try:
        chosen = settings.read(sys.argv[1:])
        logs.configure(chosen.log_level)
        asyncio.run(run(chosen, Nvml()))
    except (GpushareError, OSError) as err:
        sys.exit(f"gpushare-deviceplugin: {err}")


if __name__ == "__main__":
    main()
