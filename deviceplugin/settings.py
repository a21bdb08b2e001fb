"""Flags and environment variables of the device plugin, read once into one frozen value."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from deviceplugin.allocation.injection import InjectFlag
from deviceplugin.cards.survey import BY_DRIVER
from gpushare.contract import (
    CLASS_NVIDIA,
    CLASS_NVIDIA_CDI,
    CLASS_NVIDIA_LEGACY,
    ENV_VISIBLE_DEVICES,
    TAINT_NOT_READY,
)
from gpushare.errors import SettingsError
from gpushare.process.flags import parse_port, parse_unit
from gpushare.telemetry import logs
from gpushare.telemetry.health import version

BindingFlag = Literal["auto", "late", "early"]
KubeletTls = Literal["pin", "ca"]

_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_CERTIFICATES: Final[dict[KubeletTls, Path]] = {
    "pin": Path("/var/lib/kubelet/pki/kubelet.crt"),
    "ca": _ACCOUNT / "ca.crt",
}


@dataclass(frozen=True, slots=True)
class Settings:
    node_name: str
    kubeconfig: str | None
    unit_mib: int
    reserved_mib: int
    binding: BindingFlag
    inject: InjectFlag
    visible_devices: str
    runtime_classes: frozenset[str]
    device_plugin_dir: Path
    cdi_dir: Path
    nvidia_cdi_dirs: tuple[Path, ...]
    state_dir: Path
    node_address: str
    kubelet_port: int
    kubelet_tls: KubeletTls
    kubelet_certificate: Path
    kubelet_token: Path
    health_seconds: float
    recover_seconds: float
    reads_process_memory: bool
    removes_startup_taint: bool
    http_host: str
    http_port: int
    log_level: str
    cleans: bool


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
        inject=flags.inject,
        visible_devices=env.get(ENV_VISIBLE_DEVICES, ""),
        runtime_classes=frozenset(name.strip() for name in flags.runtime_classes.split(",")),
        device_plugin_dir=Path(flags.device_plugin_dir),
        cdi_dir=Path(flags.cdi_dir),
        nvidia_cdi_dirs=tuple(Path(each) for each in flags.nvidia_cdi_dirs.split(",") if each),
        state_dir=Path(flags.state_dir),
        node_address=flags.node_address,
        kubelet_port=parse_port("--kubelet-port", flags.kubelet_port),
        kubelet_tls=flags.kubelet_tls,
        kubelet_certificate=Path(flags.kubelet_certificate or _CERTIFICATES[flags.kubelet_tls]),
        kubelet_token=Path(flags.kubelet_token),
        health_seconds=_seconds("--health-interval", flags.health_interval),
        recover_seconds=_seconds("--recover-after", flags.recover_after),
        reads_process_memory=flags.process_memory,
        removes_startup_taint=flags.startup_taint,
        http_host=flags.http_host,
        http_port=parse_port("--http-port", flags.http_port, least=0),
        log_level=flags.log_level,
        cleans=flags.clean,
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
    add(
        "--binding",
        default="auto",
        choices=get_args(BindingFlag),
        help="when a container gets its card: at its start (late, needs a runtime with CDI) or at "
        "its pod's admission (early)",
    )
    add(
        "--inject",
        default="auto",
        choices=get_args(InjectFlag),
        help="how: by the CDI edits of NVIDIA's own files (cdi; needs late binding and these "
        "files), or through NVIDIA's runtime, which is given UUIDs (runtime) or the names of CDI "
        "devices that it makes itself (runtime-cdi); auto takes what the node has",
    )
    add(
        "--runtime-classes",
        default=f",{CLASS_NVIDIA},{CLASS_NVIDIA_CDI},{CLASS_NVIDIA_LEGACY}",
        help="RuntimeClasses of NVIDIA's runtime; an empty name stands for pods that name none, "
        "and belongs there where NVIDIA's runtime is the default one",
    )
    add("--device-plugin-dir", default="/var/lib/kubelet/device-plugins", help="kubelet's sockets")
    add("--cdi-dir", default="/var/run/cdi", help="where the runtime looks for CDI files")
    add(
        "--nvidia-cdi-dirs",
        default="/etc/cdi,/var/run/cdi",
        help="where NVIDIA's own CDI files are",
    )
    add("--state-dir", default="/var/lib/gpushare", help="indexes and tags of the cards")
    add(
        "--node-address",
        default=env.get("NODE_ADDRESS", "127.0.0.1"),
        help="the kubelet's address; also NODE_ADDRESS, from the downward API's status.hostIP",
    )
    add("--kubelet-port", default="10250", help="the kubelet's HTTPS port")
    add(
        "--kubelet-tls",
        default="pin",
        choices=get_args(KubeletTls),
        help="know the kubelet by its own certificate, or by the authority that has signed it",
    )
    add(
        "--kubelet-certificate",
        default="",
        help="that certificate, or that authority; by default "
        + " or ".join(str(path) for path in _CERTIFICATES.values()),
    )
    token = str(_ACCOUNT / "token")
    add("--kubelet-token", default=token, help="file with the token for the kubelet")
    add("--health-interval", default="5", help="seconds between two looks at the cards")
    add(
        "--recover-after",
        default="60",
        help="seconds for which a card must be well again before it is offered; twice as many "
        "each time it falls ill again",
    )
    add(
        "--process-memory",
        action="store_true",
        help="measure what each pod really uses; needs the host's process IDs",
    )
    add(
        "--startup-taint",
        action="store_true",
        help=f"take the taint {TAINT_NOT_READY} off the node once the plugin serves",
    )
    add("--http-host", default="0.0.0.0", help="where to serve health and metrics")  # noqa: S104
    add("--http-port", default="29767", help="port of /healthz, /readyz, /metrics and /version")
    add("--log-level", default="info", choices=logs.LEVELS, help="least level to log")
    add(
        "--clean",
        action="store_true",
        help="wait until no plugin runs on this node, delete its files and end",
    )
    add("--version", action="version", version=version())
    return parser
