"""The command ``gpushare-deviceplugin``."""

import sys

from deviceplugin import settings
from gpushare.errors import SettingsError
from gpushare.telemetry import logs


def main() -> int:
    try:
        found = settings.read(sys.argv[1:])
        logs.configure(found.log_level)
    except SettingsError as err:
        sys.stderr.write(f"{settings.NAME}: {err}\n")
        return 2
    try:
        from deviceplugin import app  # noqa: PLC0415 - --help needs no libraries of the plugin
    except ModuleNotFoundError as err:  # installed for the command line only
        sys.stderr.write(
            f"{settings.NAME}: {err.name} is not installed: run `make setup`, or use the image\n"
        )
        return 1
    return app.start(found)


if __name__ == "__main__":
    sys.exit(main())
