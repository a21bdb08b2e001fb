"""The container runtimes that a node can ask for beside the cluster's own containerd."""

from collections.abc import Collection
from pathlib import Path

from localcluster.build import module_version
from localcluster.programs import Programs, Progress, provide_programs
from localcluster.specs import Runtime

_SOURCES = Path(__file__).parent / "runtimes"


def provide_runtimes(
    wanted: Collection[Runtime], binaries: Path, progress: Progress
) -> dict[Runtime, Path]:
    """Return where the programs of each runtime are; build those that the cache does not have.

    `binaries` is the folder of the cluster's components, of which containerd 2 is one. Raises
    HostError, BuildError.
    """
    found: dict[Runtime, Path] = {"containerd-2": binaries}
    if "containerd-1.7" in wanted:
        found["containerd-1.7"] = provide_programs(containerd_1(), progress)
    return found


def containerd_1() -> Programs:
    """Return containerd 1.7, which many nodes still have, with its shim."""
    module = _SOURCES / "containerd-1.7"
    package = "github.com/containerd/containerd"
    version = module_version((module / "go.mod").read_text(encoding="utf-8"), package)
    names = ("containerd", "containerd-shim-runc-v2")
    packages = tuple(f"{package}/cmd/{name}" for name in names)
    flags = (f"-X {package}/version.Version={version}",)
    return Programs("containerd-1.7", module, packages, flags)
