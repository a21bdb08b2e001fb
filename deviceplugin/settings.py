"""Flags and environment variables of the device plugin, read once into one frozen value."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal, get_args

import click

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

NAME: Final = "gpushare-deviceplugin"  # of the program, and of the component in its Events
BY_DRIVER: Final = -1  # of ``reserved_mib``: the amount that the driver reports

BindingFlag = Literal["auto", "late", "early"]
InjectFlag = Literal["auto", "cdi", "runtime", "runtime-cdi"]
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
    """Return the settings from flags, else from the environment, else the defaults.

    ``--help`` and ``--version`` end the program. Raises SettingsError for anything unusable.
    """
    env = os.environ if environ is None else environ
    defaults = {
        name: env[name.upper()] for name in ("node_name", "node_address") if name.upper() in env
    }
    try:
        found = _command.main(
            list(argv), prog_name=NAME, standalone_mode=False, default_map=defaults
        )
    except click.ClickException as err:
        raise SettingsError(f"{err.format_message()} See {NAME} --help.") from err
    if not isinstance(found, dict):
        sys.exit(found)  # after --help or --version
    if not found["node_name"]:
        raise SettingsError(
            "the name of this node is missing: set --node-name, or NODE_NAME from the downward "
            "API's spec.nodeName"
        )
    return Settings(
        **found
        | {
            "kubeconfig": found["kubeconfig"] or None,
            "visible_devices": env.get(ENV_VISIBLE_DEVICES, ""),
            "kubelet_certificate": Path(
                found["kubelet_certificate"] or _CERTIFICATES[found["kubelet_tls"]]
            ),
        }
    )


def _reserved(_: str, text: str) -> int:
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
    if not 0.1 <= seconds <= 3600:  # noqa: PLR2004 - stated in the text
        raise SettingsError(f"{flag}={text}: write seconds from 0.1 to 3600")
    return seconds


def _option(
    flag: str,
    default: str,
    help_text: str,
    *,
    field: str = "",
    choices: Sequence[str] = (),
    parse: Callable[[str, str], object] | None = None,
) -> Callable[[Any], Any]:
    """Make an option; ``field`` is its name in Settings where that is not the flag's."""
    return click.option(
        flag,
        field or flag.removeprefix("--").replace("-", "_"),
        default=default,
        show_default=bool(default),
        help=help_text,
        type=click.Choice(choices) if choices else click.STRING,
        metavar=None if choices else "VALUE",
        callback=(lambda _, __, text: parse(flag, text)) if parse is not None else None,
    )


def _path(_: str, text: str) -> Path:
    return Path(text)


def _paths(_: str, text: str) -> tuple[Path, ...]:
    return tuple(Path(each) for each in text.split(",") if each)


@click.command(context_settings={"help_option_names": ["--help"], "max_content_width": 100})
@_option("--node-name", "", "Name of this node. Also NODE_NAME.")
@_option("--kubeconfig", "", "File with access to the API server, for use outside a pod.")
@_option(
    "--memory-unit",
    "GiB",
    "Size of one aliyun.com/gpu-mem: GiB, MiB or <n>MiB.",
    field="unit_mib",
    parse=lambda _, text: parse_unit(text),
)
@_option(
    "--reserved",
    "driver",
    "Memory of each GPU that is not shared: driver (what the driver reserves), none or <MiB>.",
    field="reserved_mib",
    parse=_reserved,
)
@_option(
    "--binding",
    "auto",
    "When a container is assigned its GPU: when it starts (late; needs a runtime with CDI), or "
    "when its pod is admitted (early).",
    choices=get_args(BindingFlag),
)
@_option(
    "--inject",
    "auto",
    "How containers get access to GPUs: with the CDI edits of NVIDIA's own files (cdi; needs late "
    "binding and these files), or through NVIDIA's runtime, by UUID (runtime) or by the names of "
    "CDI devices that it generates itself (runtime-cdi). auto uses what the node has.",
    choices=get_args(InjectFlag),
)
@_option(
    "--runtime-classes",
    f",{CLASS_NVIDIA},{CLASS_NVIDIA_CDI},{CLASS_NVIDIA_LEGACY}",
    "RuntimeClasses of NVIDIA's runtime. An empty name stands for pods without a RuntimeClass: "
    "include it where NVIDIA's runtime is the default runtime.",
    parse=lambda _, text: frozenset(name.strip() for name in text.split(",")),
)
@_option(
    "--device-plugin-dir",
    "/var/lib/kubelet/device-plugins",
    "Folder of the kubelet's sockets.",
    parse=_path,
)
@_option("--cdi-dir", "/var/run/cdi", "Folder in which the runtime finds CDI files.", parse=_path)
@_option(
    "--nvidia-cdi-dirs",
    "/etc/cdi,/var/run/cdi",
    "Folders with NVIDIA's own CDI files.",
    parse=_paths,
)
@_option(
    "--state-dir", "/var/lib/gpushare", "Folder for the indexes and tags of GPUs.", parse=_path
)
@_option(
    "--node-address",
    "127.0.0.1",
    "Address of the kubelet. Also NODE_ADDRESS, from the downward API's status.hostIP.",
)
@_option("--kubelet-port", "10250", "HTTPS port of the kubelet.", parse=parse_port)
@_option(
    "--kubelet-tls",
    "pin",
    "How the kubelet is verified: by its own certificate (pin), or by the authority that signed "
    "it (ca).",
    choices=get_args(KubeletTls),
)
@_option(
    "--kubelet-certificate",
    "",
    "That certificate or authority; by default "
    + " or ".join(str(path) for path in _CERTIFICATES.values())
    + ".",
)
@_option(
    "--kubelet-token", str(_ACCOUNT / "token"), "File with the token for the kubelet.", parse=_path
)
@_option(
    "--health-interval",
    "5",
    "Seconds between two health checks of the GPUs.",
    field="health_seconds",
    parse=_seconds,
)
@_option(
    "--recover-after",
    "60",
    "Seconds for which a GPU must be healthy again before it is offered; doubled each time it "
    "becomes unhealthy again.",
    field="recover_seconds",
    parse=_seconds,
)
@click.option(
    "--process-memory",
    "reads_process_memory",
    is_flag=True,
    help="Measure the memory that each pod really uses; needs the host's process IDs.",
)
@click.option(
    "--startup-taint",
    "removes_startup_taint",
    is_flag=True,
    help=f"Remove the taint {TAINT_NOT_READY} from the node once the plugin serves.",
)
@_option("--http-host", "0.0.0.0", "Address to serve health and metrics on.")  # noqa: S104
@_option(
    "--http-port",
    "29767",
    "Port of /healthz, /readyz, /metrics and /version.",
    parse=lambda flag, text: parse_port(flag, text, least=0),
)
@_option("--log-level", "info", "Lowest level to log.", choices=logs.LEVELS)
@click.option(
    "--clean",
    "cleans",
    is_flag=True,
    help="Wait until no plugin runs on this node, delete its files and end.",
)
@click.version_option(metadata.version("gpushare"), message="%(version)s")
def _command(**found: object) -> dict[str, object]:
    """Offer a node's GPU memory to Kubernetes, and assign each container its GPU."""
    return found
