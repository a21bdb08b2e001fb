"""Flags and environment variables of the device plugin, read once into one frozen value."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final, Literal, get_args

import click

from gpushare.cards.reserve import Reserve, parse_reserve
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
_MOST_SIMULATED: Final = 16
RESERVED_BY_DRIVER: Final = -1  # of ``reserved_mib``: the amount that the driver reports

CGROUP: Final = Path("/sys/fs/cgroup")

MemoryLimitFlag = Literal["auto", "off", "require"]
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
    reserve: Reserve
    memory_limit: MemoryLimitFlag
    framework_limits: bool
    binding: BindingFlag
    inject: InjectFlag
    visible_devices: str
    runtime_classes: frozenset[str]
    simulated_mib: tuple[int, ...]
    device_plugin_dir: Path
    cdi_dir: Path
    nvidia_cdi_dirs: tuple[Path, ...]
    cgroup_dir: Path
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


# Flag, default, help, and the choices where there are some. A default of False makes a switch.
_FLAGS: Final[tuple[tuple[str, str | bool, str, Sequence[str]], ...]] = (
    ("--node-name", "", "Name of this node. Also NODE_NAME.", ()),
    ("--kubeconfig", "", "File with access to the API server, for use outside a pod.", ()),
    ("--memory-unit", "GiB", "Size of one aliyun.com/gpu-mem: GiB, MiB or <n>MiB.", ()),
    (
        "--reserved",
        "driver",
        "Memory of each GPU that is not shared: driver (what the driver reserves), none or <MiB>.",
        (),
    ),
    (
        "--reserve",
        "0",
        "Memory of each GPU that is not shared either, such as 512Mi or 3%.",
        (),
    ),
    (
        "--memory-limit",
        "auto",
        (
            "Whether the driver limits each container to its share: where it can (auto), nowhere, "
            "or always (require; other nodes take no pods)."
        ),
        get_args(MemoryLimitFlag),
    ),
    (
        "--framework-limits",
        False,
        "Set the variables by which PyTorch, JAX and TensorFlow limit themselves to the share.",
        (),
    ),
    (
        "--binding",
        "auto",
        (
            "When a container is assigned its GPU: when it starts (late; needs a runtime with "
            "CDI), or when its pod is admitted (early)."
        ),
        get_args(BindingFlag),
    ),
    (
        "--inject",
        "auto",
        (
            "How containers get access to GPUs: by NVIDIA's CDI files (cdi; needs late binding), "
            "or NVIDIA's runtime, with UUIDs (runtime) or names of CDI devices (runtime-cdi)."
        ),
        get_args(InjectFlag),
    ),
    (
        "--runtime-classes",
        f",{CLASS_NVIDIA},{CLASS_NVIDIA_CDI},{CLASS_NVIDIA_LEGACY}",
        (
            "RuntimeClasses of NVIDIA's runtime; an empty name, for pods without one, where it "
            "is the default runtime."
        ),
        (),
    ),
    (
        "--simulated-gpus",
        "",
        (
            "Offer GPUs that do not exist, of these sizes in MiB, such as 16384,24576. "
            "Containers get variables, but no device. Sets --inject=cdi."
        ),
        (),
    ),
    (
        "--device-plugin-dir",
        "/var/lib/kubelet/device-plugins",
        "Folder of the kubelet's sockets.",
        (),
    ),
    ("--cdi-dir", "/var/run/cdi", "Folder in which the runtime finds CDI files.", ()),
    ("--nvidia-cdi-dirs", "/etc/cdi,/var/run/cdi", "Folders with NVIDIA's own CDI files.", ()),
    (
        "--cgroup-dir",
        str(CGROUP),
        "Folder with the cgroups of the machine.",
        (),
    ),
    ("--state-dir", "/var/lib/gpushare", "Folder for the indexes and tags of GPUs.", ()),
    (
        "--node-address",
        "127.0.0.1",
        "Address of the kubelet. Also NODE_ADDRESS.",
        (),
    ),
    ("--kubelet-port", "10250", "HTTPS port of the kubelet.", ()),
    (
        "--kubelet-tls",
        "pin",
        (
            "How the kubelet is verified: by its own certificate (pin), or by the authority that "
            "signed it (ca)."
        ),
        get_args(KubeletTls),
    ),
    (
        "--kubelet-certificate",
        "",
        (
            f"That certificate or authority; by default {_CERTIFICATES['pin']} or "
            f"{_CERTIFICATES['ca']}."
        ),
        (),
    ),
    ("--kubelet-token", str(_ACCOUNT / "token"), "File with the token for the kubelet.", ()),
    ("--health-interval", "5", "Seconds between two health checks of the GPUs.", ()),
    (
        "--recover-after",
        "60",
        (
            "Seconds for which a GPU must be healthy again before it is offered; doubled at "
            "each relapse."
        ),
        (),
    ),
    (
        "--process-memory",
        False,
        "Measure memory and SM utilization by process; needs the host's process IDs.",
        (),
    ),
    (
        "--startup-taint",
        False,
        f"Remove the taint {TAINT_NOT_READY} from the node once the plugin serves.",
        (),
    ),
    ("--http-host", "0.0.0.0", "Address to serve health and metrics on.", ()),  # noqa: S104
    ("--http-port", "29767", "Port of /healthz, /readyz, /metrics and /version.", ()),
    ("--log-level", "info", "Lowest level to log.", logs.LEVELS),
    ("--clean", False, "Wait until no plugin runs on this node, delete its files and end.", ()),
)


def read(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings from flags, else from the environment, else the defaults.

    ``--help`` and ``--version`` end the program. Raises SettingsError for anything unusable.
    """
    env = os.environ if environ is None else environ
    names = ("node_name", "node_address")
    defaults = {name: env[name.upper()] for name in names if name.upper() in env}
    try:
        found = command().main(
            list(argv), prog_name=NAME, standalone_mode=False, default_map=defaults
        )
    except click.ClickException as err:
        raise SettingsError(f"{err.format_message()} (see {NAME} --help)") from err
    if not isinstance(found, dict):
        sys.exit(found)  # after --help or --version
    if not found["node_name"]:
        raise SettingsError(
            "the name of this node is missing: set --node-name, or NODE_NAME from the downward "
            "API's spec.nodeName"
        )
    simulated = _simulated(found["simulated_gpus"])
    return Settings(
        node_name=found["node_name"],
        kubeconfig=found["kubeconfig"] or None,
        unit_mib=parse_unit(found["memory_unit"]),
        reserved_mib=_reserved(found["reserved"]),
        reserve=parse_reserve(found["reserve"]),
        memory_limit=found["memory_limit"],
        framework_limits=found["framework_limits"],
        binding=found["binding"],
        inject="cdi" if simulated else found["inject"],
        visible_devices=env.get(ENV_VISIBLE_DEVICES, ""),
        runtime_classes=frozenset(name.strip() for name in found["runtime_classes"].split(",")),
        simulated_mib=simulated,
        device_plugin_dir=Path(found["device_plugin_dir"]),
        cdi_dir=Path(found["cdi_dir"]),
        nvidia_cdi_dirs=tuple(Path(each) for each in found["nvidia_cdi_dirs"].split(",") if each),
        cgroup_dir=Path(found["cgroup_dir"]),
        state_dir=Path(found["state_dir"]),
        node_address=found["node_address"],
        kubelet_port=parse_port("--kubelet-port", found["kubelet_port"]),
        kubelet_tls=found["kubelet_tls"],
        kubelet_certificate=Path(
            found["kubelet_certificate"] or _CERTIFICATES[found["kubelet_tls"]]
        ),
        kubelet_token=Path(found["kubelet_token"]),
        health_seconds=_seconds("--health-interval", found["health_interval"]),
        recover_seconds=_seconds("--recover-after", found["recover_after"]),
        reads_process_memory=found["process_memory"],
        removes_startup_taint=found["startup_taint"],
        http_host=found["http_host"],
        http_port=parse_port("--http-port", found["http_port"], least=0),
        log_level=found["log_level"],
        cleans=found["clean"],
    )


def _reserved(text: str) -> int:
    named = {"driver": RESERVED_BY_DRIVER, "none": 0}
    if text in named:
        return named[text]
    if not (text.isascii() and text.isdigit() and len(text) <= 7):  # noqa: PLR2004 - 9 TiB
        raise SettingsError(f"--reserved={text}: write driver, none or a number of MiB")
    return int(text)


def _simulated(text: str) -> tuple[int, ...]:
    sizes = text.split(",") if text else []
    if len(sizes) > _MOST_SIMULATED or not all(
        re.fullmatch("[1-9][0-9]{0,6}", each) for each in sizes
    ):
        raise SettingsError(
            f"--simulated-gpus={text}: write the MiB of each GPU, such as 16384,24576, of at most "
            f"{_MOST_SIMULATED} GPUs"
        )
    return tuple(int(each) for each in sizes)


def _seconds(flag: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:  # noqa: PLR2004 - stated in the text
        raise SettingsError(f"{flag}={text}: write seconds from 0.1 to 3600")
    return seconds


def command() -> click.Command:
    """Return the program's flags; calling it returns their texts."""
    options: list[click.Parameter] = [
        click.Option(
            [flag],
            default=default,
            is_flag=default is False,
            show_default=bool(default),
            type=click.Choice(choices) if choices else None,
            metavar=None if choices or default is False else "VALUE",
            help=text,
        )
        for flag, default, text, choices in _FLAGS
    ]
    flags = click.Command(
        NAME,
        params=options,
        callback=lambda **found: found,
        context_settings={"max_content_width": 100},
        help="Offer a node's GPU memory to Kubernetes, and assign each container its GPU.",
    )
    return click.version_option(metadata.version("gpushare"), message="%(version)s")(flags)
