"""The command ``gpushare-deviceplugin``."""

import gc
import sys
from functools import partial

from gpushare.errors import SettingsError
from gpushare.process.lifetime import run

try:
    from deviceplugin import app, settings
    from deviceplugin.driver.nvml import Nvml, NvmlProcesses
    from deviceplugin.lifecycle.clean import clean
    from deviceplugin.lifecycle.supervisor import supervise
    from gpushare.telemetry import logs
except ModuleNotFoundError as err:  # installed for the command line alone
    sys.exit(
        f"gpushare-deviceplugin: {err.name} is not installed: run `make setup`, or use the image"
    )

NAME = "gpushare-deviceplugin"


def main() -> int:
    try:
        found = settings.read(sys.argv[1:])
        logs.configure(found.log_level)
    except SettingsError as err:
        sys.stderr.write(f"{NAME}: {err}\n")
        return 2
    if found.cleans:
        return run(partial(clean, found), NAME)

    def work(before: int) -> int:
        return run(partial(app.run, found, Nvml(), NvmlProcesses(), before=before), NAME)

    gc.freeze()  # what was imported stays shared between the processes
    return supervise(work)


if __name__ == "__main__":
    sys.exit(main())
