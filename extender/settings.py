"""The extender's settings: flags, each with an environment variable of the same name."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from gpushare.contract import EXTENDER_PORT
from gpushare.errors import SettingsError
from gpushare.telemetry.health import version
from gpushare.telemetry.logs import LEVELS
from gpushare.units import parse_unit


@dataclass(frozen=True, slots=True)
class Settings:
    host: str
    port: int
    unit_mib: int
    kubeconfig: str | None
    log_level: str


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(message)


def parse(argv: Sequence[str]) -> Settings:
    """Read flags, then GPUSHARE_* variables, then defaults; SettingsError names what is wrong."""
    parser = _Parser(
        prog="gpushare-extender", description="Scheduler extender that shares GPUs by memory."
    )
    parser.add_argument("--host", default=_env("HOST", "127.0.0.1"), help="address to listen on")
    parser.add_argument("--port", default=_env("PORT", str(EXTENDER_PORT)), help="port")
    parser.add_argument(
        "--memory-unit",
        default=_env("MEMORY_UNIT", "GiB"),
        help="what one aliyun.com/gpu-mem means in this cluster: GiB, MiB or <n>MiB",
    )
    parser.add_argument(
        "--kubeconfig",
        default=os.environ.get("GPUSHARE_KUBECONFIG"),
        help="path; the pod's ServiceAccount where it is not given",
    )
    parser.add_argument("--log-level", default=_env("LOG_LEVEL", "info"), choices=LEVELS)
    parser.add_argument("--version", action="version", version=version())
    found = parser.parse_args(argv)
    is_number = found.port.isascii() and found.port.isdigit() and len(found.port) <= len("65535")
    if not (is_number and 0 < int(found.port) < 2**16):
        raise SettingsError(f"--port is {found.port!r}: write a number from 1 to 65535")
    return Settings(
        host=found.host,
        port=int(found.port),
        unit_mib=parse_unit(found.memory_unit),
        kubeconfig=found.kubeconfig,
        log_level=found.log_level,
    )


def _env(name: str, default: str) -> str:
    return os.environ.get(f"GPUSHARE_{name}", default)
