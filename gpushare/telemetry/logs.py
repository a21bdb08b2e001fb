"""Write each log record as a line of JSON: a constant message plus fields."""

import datetime as dt
import logging
import sys
from typing import Final

from gpushare.errors import SettingsError
from gpushare.text.printable_json import printable_json

LEVELS: Final = ("debug", "info", "warning", "error")
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = dt.datetime.fromtimestamp(record.created, dt.UTC)
        line: dict[str, object] = {
            "time": when.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return printable_json(line, enc_hook=str).decode()


def configure(level: str) -> None:
    """Send all logs of the process to standard error; ``level`` is one of LEVELS."""
    if level not in LEVELS:
        raise SettingsError(f"log level {level!r} is unknown: use one of {', '.join(LEVELS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)


def set_level(level: str) -> None:
    """Change the level after ``configure``; ``level`` is one of LEVELS."""
    logging.getLogger().setLevel(level.upper())
