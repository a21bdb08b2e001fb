"""Flags and environment variables of the device plugin, read once into one frozen value."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deviceplugin.allocation import BINDINGS, BindingName
from deviceplugin.inventory import BY_DRIVER
from gpushare.errors import SettingsError
from gpushare.flags import parse_port, parse_unit
from gpushare.telemetry import logs
from gpushare.telemetry.health import version

_TOKEN: Final = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105 - its file


@dataclass(frozen=True, slots=True)
class Settings:
    node_name: str
    kubeconfig: str | None
    unit_mib: int
    reserved_mib: int
    binding: BindingName
    device_plugin_dir: Path
    cdi_dir: Path
    state_dir: Path
    node_address: str
    kubelet_port: int
    kubelet_certificate: Path
    kubelet_token: Path
    health_seconds: float
    http_host: str
    http_port: int
    log_level: str


def read(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> Settings:
    """The settings that flags state, else the environment, else the defaults.

    Raises SettingsError for what cannot be used; argparse itself ends the program for a flag that
    does not exist.
    """
    env = os.environ if environ is None else environ
    flags = _parser(env).parse_args(argv)
    if not flags.node_name:
        raise SettingsError(
            "which node is this? Set --node-name, or NODE_NAME from the downward API's "
            "spec.nodeName"
        )
    return Settings(
        node_name=flags.node_name,
        kubeconfig=flags.kubeconfig or None,
        unit_mib=parse_unit(flags.memory_unit),
        reserved_mib=_reserved(flags.reserved),
        binding=flags.binding,
        device_plugin_dir=Path(flags.device_plugin_dir),
        cdi_dir=Path(flags.cdi_dir),
        state_dir=Path(flags.state_dir),
        node_address=flags.node_address,
        kubelet_port=parse_port("--kubelet-port", flags.kubelet_port),
        kubelet_certificate=Path(flags.kubelet_certificate),
        kubelet_token=Path(flags.kubelet_token),
        health_seconds=_seconds("--health-interval", flags.health_interval),
        http_host=flags.http_host,
        http_port=parse_port("--http-port", flags.http_port, least=0),
        log_level=flags.log_level,
    )


def _reserved(text: str) -> int:
    named = {"driver": BY_DRIVER, "none": 0}
    if text in named:
        return named[text]
    if not (text.isascii() and text.isdigit() and len(text) <= 7):  # noqa: PLR2004 - 9 TiB
        raise SettingsError(f"--reserved={text}: write driver, none or a number of MiB")
    return int(text)


def _seconds(flag: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:  # noqa: PLR2004 - said in the text
        raise SettingsError(f"{flag}={text}: write seconds from 0.1 to 3600")
    return seconds


def _parser(env: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpushare-deviceplugin",
        description="Offers a node's GPU memory to Kubernetes, and gives each container its card.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--node-name", default=env.get("NODE_NAME", ""), help="this node; also NODE_NAME")
    add("--kubeconfig", default="", help="file to reach the API server by, outside a pod")
    add("--memory-unit", default="GiB", help="what one gpu-mem is: GiB, MiB or <n>MiB")
    add("--reserved", default="driver", help="MiB of each card kept back: driver, none or <MiB>")
    add("--binding", default="late", choices=BINDINGS, help="late needs a runtime with CDI")
    add("--device-plugin-dir", default="/var/lib/kubelet/device-plugins", help="kubelet's sockets")
    add("--cdi-dir", default="/var/run/cdi", help="where the runtime looks for CDI files")
    add("--state-dir", default="/var/lib/gpushare", help="indexes and tags of the cards")
    add(
        "--node-address",
        default=env.get("NODE_ADDRESS", "127.0.0.1"),
        help="the kubelet's address; also NODE_ADDRESS, from the downward API's status.hostIP",
    )
    add("--kubelet-port", default="10250", help="the kubelet's HTTPS port")
    add(
        "--kubelet-certificate",
        default="/var/lib/kubelet/pki/kubelet.crt",
        help="what the kubelet serves with, or the authority that has signed it",
    )
    add("--kubelet-token", default=_TOKEN, help="file with the token for the kubelet")
    add("--health-interval", default="5", help="seconds between two looks at the cards")
    add("--http-host", default="0.0.0.0", help="where to serve health and metrics")  # noqa: S104
    add("--http-port", default="32767", help="port of /healthz, /readyz, /metrics and /version")
    add("--log-level", default="info", choices=logs.LEVELS, help="least level to log")
    add("--version", action="version", version=version())
    return parser
