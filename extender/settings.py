"""The extender's settings: flags, each with an environment variable of the same name."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec

from extender.configuration import Configuration, LeaderElection
from gpushare.contract import EXTENDER_PORT
from gpushare.errors import SettingsError
from gpushare.flags import parse_port, parse_unit
from gpushare.telemetry.health import version
from gpushare.telemetry.logs import LEVELS


@dataclass(frozen=True, slots=True)
class Settings:
    host: str
    port: int
    unit_mib: int
    kubeconfig: str | None
    log_level: str
    evict_after_seconds: float
    leader_election: LeaderElection | None = None


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
    parser.add_argument(
        "--evict-after",
        default=_env("EVICT_AFTER", "60"),
        help="seconds for which a pod may wait for a card that cannot be used, before it is "
        "evicted; 0 to evict none",
    )
    parser.add_argument("--log-level", default=_env("LOG_LEVEL", "info"), choices=LEVELS)
    parser.add_argument("--version", action="version", version=version())
    parser.add_argument("--config", help="a file of the configuration; it wins over flags")
    found = parser.parse_args(argv)
    if found.config is not None:
        return _from_file(found.config)
    return Settings(
        host=found.host,
        port=parse_port("--port", found.port),
        unit_mib=parse_unit(found.memory_unit),
        kubeconfig=found.kubeconfig,
        log_level=found.log_level,
        evict_after_seconds=_seconds("--evict-after", found.evict_after),
    )


def _from_file(path: str) -> Settings:
    try:
        text = Path(path).read_bytes()
        wanted = msgspec.yaml.decode(text, type=Configuration)
    except (OSError, msgspec.DecodeError) as err:
        raise SettingsError(f"configuration {path}: {err}") from err
    return Settings(
        host=wanted.listen.deciding.host,
        port=wanted.listen.deciding.port,
        unit_mib=parse_unit(wanted.memory_unit),
        kubeconfig=wanted.kubeconfig,
        log_level=wanted.log_level,
        evict_after_seconds=wanted.evict_after_seconds,
        leader_election=wanted.leader_election,
    )


def _seconds(flag: str, text: str) -> float:
    is_number = text.isascii() and text.isdigit() and len(text) <= 5  # noqa: PLR2004 - a day
    if not is_number:
        raise SettingsError(f"{flag}={text[:63]}: write whole seconds from 0 to 99999")
    return float(text)


def _env(name: str, default: str) -> str:
    return os.environ.get(f"GPUSHARE_{name}", default)
