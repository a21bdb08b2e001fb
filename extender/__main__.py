"""The command ``gpushare-extender``."""

import sys

from extender import app, settings
from gpushare.lifetime import run
from gpushare.telemetry import logs


def main() -> int:
    async def program() -> None:
        found = settings.parse(sys.argv[1:])
        logs.configure(found.log_level)
        await app.run(found)

    return run(program, "gpushare-extender")


if __name__ == "__main__":
    sys.exit(main())
