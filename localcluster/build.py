"""Building every component from the pinned go.mod files into the user's cache folder."""

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from localcluster.gobuild import content, go_build, module_version
from localcluster.host import BUILD_NEEDS, provide
from localcluster.state import cache_root, locked
from localcluster.versions import DEFAULT, Version

Progress = Callable[[str], None]

SOURCES: Final = Path(__file__).parent / "components"
_CONTAINERD: Final = "github.com/containerd/containerd/v2"
_PLUGINS: Final = "github.com/containernetworking/plugins/plugins"
_LAST_WITH_CLOUDS: Final = Version(30)
_LAST_WITH_TWO_VERSIONS: Final = Version(27)


@dataclass(frozen=True)
class Component:
    """One binary and how it is built; `needs_c`: it links against the C library."""

    name: str
    package: str
    link_flags: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    needs_c: bool = False


@dataclass(frozen=True)
class Module:
    """The components, in building order, that the go.mod in `source` requires."""

    name: str
    source: Path
    components: tuple[Component, ...]

    @property
    def folder(self) -> Path:
        """The folder of the binaries, named by what they are built from and by nothing else."""
        packages = [each.package for each in self.components]
        return cache_root() / f"{self.name}-{content(self.source, packages, self.components)}"

    @property
    def missing(self) -> list[Component]:
        """The components that are not in the folder."""
        return [each for each in self.components if not (self.folder / each.name).exists()]


def modules(version: Version) -> tuple[Module, ...]:
    """Return everything that a cluster of this version is built from; only one part depends on it.

    runc has a go.mod of its own: its 1.3 needs runtime-spec 1.2, containerd's 2.2 needs 1.3.
    """
    containerd = module_version(SOURCES, _CONTAINERD)
    told = (f"-X {_CONTAINERD}/version.Version={containerd}",)
    components = (
        Component("workload", "./workload"),
        Component("pause", "./pause"),
        Component("host-local", f"{_PLUGINS}/ipam/host-local"),
        Component("loopback", f"{_PLUGINS}/main/loopback"),
        Component("ptp", f"{_PLUGINS}/main/ptp"),
        Component("ctr", f"{_CONTAINERD}/cmd/ctr", told),
        Component("containerd-shim-runc-v2", f"{_CONTAINERD}/cmd/containerd-shim-runc-v2", told),
        Component("containerd", f"{_CONTAINERD}/cmd/containerd", told),
        Component("etcd", "go.etcd.io/etcd/server/v3"),
    )
    # Without seccomp, which is a C library, runc refuses every sandbox.
    runc = Component("runc", "github.com/opencontainers/runc", tags=("seccomp",), needs_c=True)
    return (
        Module("runc", SOURCES / "runc", (runc,)),
        Module("components", SOURCES, components),
        kubernetes(version),
    )


def kubernetes(version: Version) -> Module:
    """Return the components of Kubernetes."""
    # Without a version the components call themselves v0.0.0 and skew checks refuse them.
    packages = ["k8s.io/component-base/version"]
    if version <= _LAST_WITH_TWO_VERSIONS:
        packages.append("k8s.io/client-go/pkg/version")  # what the API server says
    values = {"Version": version.release, "Major": 1, "Minor": version.minor}
    told = tuple(
        f"-X {package}.git{name}={value}" for package in packages for name, value in values.items()
    )
    # The clients of clouds, which no local cluster needs, are a fourth of the old versions.
    tags = ("providerless",) if version <= _LAST_WITH_CLOUDS else ()
    names = ("kubectl", "kube-scheduler", "kube-apiserver", "kubelet", "kube-controller-manager")
    components = (
        Component(name, f"k8s.io/kubernetes/cmd/{name}", told, tags=tags) for name in names
    )
    return Module(f"kubernetes-{version}", version.module, tuple(components))


def build(progress: Progress, version: Version = DEFAULT) -> Path:
    """Build what is not yet in the cache and return a folder with all binaries of a cluster.

    Builders that run at the same time wait for each other; one that was cut off is continued.
    Raises HostError for a missing compiler, BuildError for anything the compiler says.
    """
    wanted = modules(version)
    names = "\n".join(each.folder.name for each in wanted)
    digest = hashlib.sha256(names.encode()).hexdigest()[:16]
    folder = cache_root() / f"cluster-{version}-{digest}" / "bin"
    if not folder.exists():
        with locked(cache_root() / ".build.lock"):
            if not folder.exists():
                _build(wanted, progress)
                _gather(wanted, folder)
    return folder


def _build(wanted: Sequence[Module], progress: Progress) -> None:
    missing = [(module, each) for module in wanted for each in module.missing]
    if missing:
        provide(BUILD_NEEDS)
    for number, (module, component) in enumerate(missing, start=1):
        place = f"{component.name} of {module.name} ({number} of {len(missing)})"
        progress(f"building {place} ...")
        started = time.monotonic()
        module.folder.mkdir(parents=True, exist_ok=True)
        partial = module.folder / f".{component.name}.partial"
        go_build(
            module.source,
            (component.package,),
            partial,
            link_flags=component.link_flags,
            tags=component.tags,
            needs_c=component.needs_c,
        )
        partial.rename(module.folder / component.name)
        progress(f"built {place} in {time.monotonic() - started:.0f} s")


def _gather(wanted: Sequence[Module], folder: Path) -> None:
    """Give all components names in one folder, where a node's programs find each other."""
    partial = folder.with_name(".bin.partial")
    partial.mkdir(parents=True, exist_ok=True)
    for module in wanted:
        for each in module.components:
            place = partial / each.name
            place.unlink(missing_ok=True)
            os.link(module.folder / each.name, place)
    partial.rename(folder)
