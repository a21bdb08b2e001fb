"""Reads the configuration again at SIGHUP, and applies what can change without a restart."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from extender.settings.configuration import Configuration
from extender.settings.file import load
from gpushare.errors import SettingsError

log = logging.getLogger(__name__)


class Reload:
    """Reads the file again at each call; ``apply`` gets the new configuration.

    A file with any problem changes nothing. Changes that need a restart are logged and not applied.
    """

    def __init__(
        self, path: Path, configuration: Configuration, apply: Callable[[Configuration], None]
    ) -> None:
        self._path, self._now, self._apply = path, configuration, apply

    def __call__(self) -> None:
        try:
            wanted = load(self._path)
        except SettingsError as err:
            log.error("configuration not reloaded", extra={"why": str(err)})  # noqa: TRY400 - not a defect
            return
        # All other settings are fixed when the parts of the program are constructed.
        limits = msgspec.structs.replace(wanted.limits, body_mib=self._now.limits.body_mib)
        now = msgspec.structs.replace(self._now, log_level=wanted.log_level, limits=limits)
        changed = sorted(different(self._now, now))
        self._now = now
        self._apply(now)
        log.info("configuration reloaded", extra={"changed": changed})
        if left := sorted(different(now, wanted)):
            log.warning("these changes need a restart", extra={"left": left})


def different(before: Configuration, after: Configuration) -> Iterator[str]:
    yield from _different(msgspec.to_builtins(before), msgspec.to_builtins(after), "")


def _different(before: Any, after: Any, place: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() | after.keys():
            below = f"{place}.{key}" if place else key
            yield from _different(before.get(key), after.get(key), below)
    elif before != after:
        yield place
