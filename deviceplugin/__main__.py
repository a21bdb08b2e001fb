"""The command ``gpushare-deviceplugin``."""

import sys

from deviceplugin import app, settings
from deviceplugin.nvml import Nvml
from gpushare.lifetime import run
from gpushare.telemetry import logs


def main() -> int:
    async def program() -> None:
        found = settings.read(sys.argv[1:])
        logs.configure(found.log_level)
        # Two sessions with the library, because each is used by a thread of its own.
        await app.run(found, Nvml(), Nvml())

    return run(program, "gpushare-deviceplugin")


if __name__ == "__main__":
    sys.exit(main())
