"""The command ``gpushare-deviceplugin``."""

import sys

from gpushare.lifetime import run

try:
    from deviceplugin import app, settings
    from deviceplugin.clean import clean
    from deviceplugin.nvml import Nvml, NvmlProcesses
    from gpushare.telemetry import logs
except ModuleNotFoundError as err:  # installed for the command line alone
    sys.exit(
        f"gpushare-deviceplugin: {err.name} is not there: pip install '.[deviceplugin]' brings it"
    )


def main() -> int:
    async def program() -> None:
        found = settings.read(sys.argv[1:])
        logs.configure(found.log_level)
        if found.cleans:
            await clean(found)
            return
        await app.run(found, Nvml(), NvmlProcesses())

    return run(program, "gpushare-deviceplugin")


if __name__ == "__main__":
    sys.exit(main())
