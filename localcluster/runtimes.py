"""The container runtimes that a node can have instead of the cluster's own containerd."""

from collections.abc import Collection
from pathlib import Path

from localcluster.errors import BuildError, CommandError
from localcluster.gobuild import module_version
from localcluster.host import CRIO_NEEDS, provide
from localcluster.programs import Programs, Progress, provide_programs
from localcluster.run import run
from localcluster.specs import Runtime
from localcluster.state import cache_root
from localcluster.toolchain import go_command, go_environment

_SOURCES = Path(__file__).parent / "runtimes"
_CRIO = "github.com/cri-o/cri-o"


def provide_runtimes(
    wanted: Collection[Runtime], binaries: Path, progress: Progress
) -> dict[Runtime, Path]:
    """Return where the programs of each runtime are; build those that are not in the cache.

    `binaries` is the folder of the cluster's components, which include containerd 2. Raises
    HostError, BuildError.
    """
    found: dict[Runtime, Path] = {"containerd-2": binaries}
    if "containerd-1.7" in wanted:
        found["containerd-1.7"] = provide_programs(containerd_1(), progress)
    if "cri-o" in wanted:
        provide(CRIO_NEEDS)
        found["cri-o"] = provide_programs(cri_o(), progress)
        _build_pinns(found["cri-o"])
    return found


def containerd_1() -> Programs:
    """Return containerd 1.7, which many nodes still run, with its shim."""
    module = _SOURCES / "containerd-1.7"
    package = "github.com/containerd/containerd"
    version = module_version(module, package)
    names = ("containerd", "containerd-shim-runc-v2")
    packages = tuple(f"{package}/cmd/{name}" for name in names)
    flags = (f"-X {package}/version.Version={version}",)
    return Programs("containerd-1.7", module, packages, flags)


def cri_o() -> Programs:
    """Return CRI-O; it does not verify signatures, so it needs no GnuPG library."""
    tags = (
        "containers_image_openpgp",
        "containers_image_ostree_stub",
        "exclude_graphdriver_btrfs",
        "seccomp",
    )
    packages = (f"{_CRIO}/cmd/crio",)
    return Programs("cri-o", _SOURCES / "crio", packages, tags=tags, needs_c=True)


def _build_pinns(folder: Path) -> None:
    """Build pinns, CRI-O's C program that pins namespaces, from the sources in its Go module."""
    if (folder / "pinns").exists():
        return
    module = _SOURCES / "crio"
    go = go_command(module / "go.mod", cache_root())
    listed = [str(go), "list", "-m", "-f", "{{.Dir}}", _CRIO]
    partial = folder / ".pinns.partial"
    try:
        place = run(listed, cwd=module, env=go_environment(cache_root())).strip()
        sources = sorted((Path(place) / "pinns" / "src").glob("*.c"))
        run(["cc", "-std=c99", "-Os", "-static", "-o", partial, *sources])
    except CommandError as problem:
        raise BuildError(f"CRI-O's pinns did not build: {problem}") from problem
    partial.rename(folder / "pinns")
