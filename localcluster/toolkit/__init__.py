"""NVIDIA's container toolkit on a node: its version and its configuration.

The programs are built from NVIDIA's own Go module, pinned by `v1.20/go.mod` and `v1.17/go.mod`.
"""

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from localcluster.driver import ROOT as DRIVER_ROOT
from localcluster.programs import Programs, Progress, provide_programs

CONFIG_FOLDER: Final = "/etc/nvidia-container-runtime"
_MODULES: Final = Path(__file__).parent
_PACKAGE: Final = "github.com/NVIDIA/nvidia-container-toolkit/cmd/"
_RUNTIME: Final = "nvidia-container-runtime"
_COMMANDS: Final = (
    _RUNTIME,
    f"{_RUNTIME}.cdi",
    f"{_RUNTIME}.legacy",
    f"{_RUNTIME}-hook",
    "nvidia-cdi-hook",
    "nvidia-ctk",
)
# go-nvml names functions that only the driver has: they may be missing until they are called.
_LINK_FLAGS: Final = ("-extldflags=-Wl,-z,lazy",)


class Setup(StrEnum):
    """How the containers of a node get GPUs.

    LEGACY, AUTO, AUTO_1_17: NVIDIA's runtime is containerd's default, in the mode of that name;
    what `auto` means depends on the toolkit's version. AUTO_CDI: the same as AUTO, with the CDI
    file that the toolkit's nvidia-cdi-refresh.service writes. OPERATOR: as GPU Operator 25.10 and
    newer configures a node. CDI: `nvidia-ctk cdi generate` was run, and nothing else is configured.
    NONE: no toolkit.
    """

    LEGACY = "legacy"
    AUTO = "auto"
    AUTO_1_17 = "auto-1.17"
    AUTO_CDI = "auto-cdi"
    OPERATOR = "operator"
    CDI = "cdi"
    NONE = "none"


@dataclass(frozen=True)
class Toolkit:
    """A version of the toolkit, and its part of containerd's and its own configuration.

    `handlers` are containerd's runtimes by name, each with its program; `default` is for pods
    without a RuntimeClass. `spec` is the last part of the command that writes a CDI file.
    """

    version: str = "1.20"
    mode: str = "auto"
    default_kind: str = ""
    handlers: Mapping[str, str] = field(default_factory=lambda: {"nvidia": _RUNTIME})
    default: str = "nvidia"
    spec: tuple[str, ...] = ()


_TOOLKITS: Final[Mapping[Setup, Toolkit]] = {
    Setup.LEGACY: Toolkit(mode="legacy"),
    Setup.AUTO: Toolkit(),
    Setup.AUTO_1_17: Toolkit(version="1.17"),
    # deployments/systemd/nvidia-cdi-refresh.service of the toolkit, from 1.18 on.
    Setup.AUTO_CDI: Toolkit(spec=("--output=/var/run/cdi/nvidia.yaml",)),
    # assets/state-container-toolkit/0500_daemonset.yaml and controllers/object_controls.go of
    # github.com/NVIDIA/gpu-operator: the mode, the kind, and a file with the device `all` alone.
    Setup.OPERATOR: Toolkit(
        mode="cdi",
        default_kind="management.nvidia.com/gpu",
        handlers={
            "nvidia": _RUNTIME,
            "nvidia-cdi": f"{_RUNTIME}.cdi",
            "nvidia-legacy": f"{_RUNTIME}.legacy",
        },
        default="runc",
        spec=(
            "--mode=management",
            "--vendor=management.nvidia.com",
            "--class=gpu",
            "--output=/var/run/cdi/management.nvidia.com-gpu.yaml",
        ),
    ),
    Setup.CDI: Toolkit(
        handlers={},
        default="runc",
        spec=("--device-name-strategy=uuid", "--output=/etc/cdi/nvidia.yaml"),
    ),
}


def toolkit_of(setup: Setup) -> Toolkit | None:
    """Return the toolkit of a node with this setup, if any."""
    return _TOOLKITS.get(setup)


def has_handlers(setup: Setup) -> bool:
    """Return whether a node's container runtime is configured with NVIDIA's on this setup."""
    toolkit = toolkit_of(setup)
    return toolkit is not None and bool(toolkit.handlers)


def programs(version: str, progress: Progress) -> Path:
    """Return the folder of a version's programs; build them if they are not in the cache.

    Raises HostError, BuildError.
    """
    packages = tuple(f"{_PACKAGE}{each}" for each in _COMMANDS)
    module = _MODULES / f"v{version}"
    name = f"toolkit-{version}"
    wanted = Programs(name, module, packages, link_flags=_LINK_FLAGS, needs_c=True)
    return provide_programs(wanted, progress)


def provide_toolkits(setups: Iterable[Setup], progress: Progress) -> None:
    """Build what nodes of these setups need and the cache does not have; HostError, BuildError."""
    versions = {toolkit.version for each in setups if (toolkit := toolkit_of(each))}
    for version in sorted(versions):
        programs(version, progress)
    if versions:
        container_cli(progress)


def container_cli(progress: Progress) -> Path:
    """Return the stand-in for nvidia-container-cli, which every version of the toolkit calls.

    Raises HostError, BuildError.
    """
    packages = ("./nvidia-container-cli",)
    module = _MODULES / "v1.20"
    wanted = Programs(
        "nvidia-container-cli", module, packages, link_flags=_LINK_FLAGS, needs_c=True
    )
    return provide_programs(wanted, progress) / "nvidia-container-cli"


def installed() -> tuple[Path, Path] | None:
    """Return the folder of this machine's own toolkit and its nvidia-container-cli, if complete."""
    found = [shutil.which(each) for each in (*_COMMANDS, "nvidia-container-cli")]
    paths = [Path(each) for each in found if each]
    if len(paths) < len(found) or len({each.parent for each in paths[:-1]}) > 1:
        return None
    return paths[0].parent, paths[-1]


def config(
    toolkit: Toolkit, *, folder: Path, runc: Path, cli: Path, hook: Path | None = None
) -> str:
    """Return the toolkit's config.toml; `folder` has its programs.

    `hook` is what runs in the place of its hooks, if anything does.
    """
    kind = f'default-kind = "{toolkit.default_kind}"' if toolkit.default_kind else ""
    # The hook would refuse the mode of the RuntimeClass nvidia-legacy; the operator sets this, too.
    skip = "true" if toolkit.default_kind else "false"
    return f"""\
[nvidia-container-cli]
root = "{DRIVER_ROOT}"
path = "{cli}"
load-kmods = false

[nvidia-container-runtime]
mode = "{toolkit.mode}"
runtimes = ["{runc}"]

[nvidia-container-runtime.modes.cdi]
{kind}

[nvidia-container-runtime-hook]
path = "{folder / f"{_RUNTIME}-hook"}"
skip-mode-detection = {skip}

[nvidia-ctk]
path = "{hook or folder / "nvidia-ctk"}"
"""


def spec_command(toolkit: Toolkit, folder: Path, hook: Path | None = None) -> list[str]:
    """Return the command that writes the node's CDI file, run inside the node.

    `hook` is what runs in the place of the toolkit's hooks, if anything does.
    """
    return [
        str(folder / "nvidia-ctk"),
        "cdi",
        "generate",
        f"--driver-root={DRIVER_ROOT}",
        f"--dev-root={DRIVER_ROOT}",
        f"--nvidia-cdi-hook-path={hook or folder / 'nvidia-cdi-hook'}",
        *toolkit.spec,
    ]
