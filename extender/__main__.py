"""The command ``gpushare-extender``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from gpushare.errors import SettingsError
from gpushare.process.lifetime import run

try:
    from extender import app
    from extender.event_loop import EventLoop
    from extender.settings.file import load
    from gpushare.telemetry import logs
    from gpushare.telemetry.health import version
except ModuleNotFoundError as err:  # installed only for the command line
    sys.exit(f"gpushare-extender: {err.name} is not installed: run `make setup`, or use the image")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(message)


def parse(argv: Sequence[str]) -> Path:
    """Return the configuration's path; raise SettingsError for wrong flags."""
    parser = _Parser(
        prog="gpushare-extender", description="Scheduler extender that shares GPUs by memory."
    )
    parser.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="configuration, in YAML"
    )
    parser.add_argument("--version", action="version", version=version())
    path: Path = parser.parse_args(argv).config
    return path


def main() -> int:
    async def program() -> None:
        path = parse(sys.argv[1:])
        configuration = load(path)
        logs.configure(configuration.log_level)
        await app.run(configuration, path)

    return run(program, "gpushare-extender", EventLoop)


if __name__ == "__main__":
    sys.exit(main())
