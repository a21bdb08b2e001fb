"""Building every component from the pinned go.mod files into the user's cache folder."""

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from localcluster.gobuild import content, go_build, module_version, program_name
from localcluster.host import BUILD_NEEDS, provide
from localcluster.state import cache_root, locked
from localcluster.versions import DEFAULT, Version

Progress = Callable[[str], None]

SOURCES: Final = Path(__file__).parent / "components"
_CONTAINERD: Final = "github.com/containerd/containerd/v2"
_PLUGINS: Final = "github.com/containernetworking/plugins/plugins"
# Snapshotters, traces and plugins in WebAssembly, which the nodes' configuration disables anyway.
_UNUSED_PLUGINS: Final = ("no_devmapper", "no_zfs", "no_tracing", "nri_no_wasm")
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
    names = ("ctr", "containerd-shim-runc-v2", "containerd")
    components = (
        Component("workload", "./workload"),
        Component("pause", "./pause"),
        Component("host-local", f"{_PLUGINS}/ipam/host-local"),
        Component("loopback", f"{_PLUGINS}/main/loopback"),
        Component("ptp", f"{_PLUGINS}/main/ptp"),
        *(Component(each, f"{_CONTAINERD}/cmd/{each}", told, _UNUSED_PLUGINS) for each in names),
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
    builds = [(module, group) for module in wanted for group in _groups(module.missing)]
    if builds:
        provide(BUILD_NEEDS)
    for number, (module, group) in enumerate(builds, start=1):
        names = ", ".join(each.name for each in group)
        place = f"{module.name} ({number} of {len(builds)})"
        progress(f"building {place}: {names} ...")
        started = time.monotonic()
        partial = module.folder / ".partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        one = group[0]
        go_build(
            module.source,
            [each.package for each in group],
            partial,
            link_flags=one.link_flags,
            tags=one.tags,
            needs_c=one.needs_c,
        )
        for each in group:
            (partial / program_name(each.package)).rename(module.folder / each.name)
        partial.rmdir()
        progress(f"built {place} in {time.monotonic() - started:.0f} s")


def _groups(components: Sequence[Component]) -> list[list[Component]]:
    """Return components together that one `go build` can make: they are built in the same way."""
    found: dict[object, list[Component]] = {}
    for each in components:
        how = (each.link_flags, each.tags, each.needs_c)
        found.setdefault(how, []).append(each)
    return list(found.values())


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
