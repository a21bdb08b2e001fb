"""Building every component from the pinned go.mod files into the user's cache folder."""

import hashlib
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localcluster.errors import BuildError
from localcluster.host import BUILD_NEEDS, provide
from localcluster.state import cache_root, locked
from localcluster.toolchain import go_command, go_environment

Progress = Callable[[str], None]

SOURCES = Path(__file__).parent / "components"
_LAST_LINES = 20
_STRIPPED = ("-s", "-w")


@dataclass(frozen=True)
class Component:
    """One binary and how it is built.

    `module` is the folder of its go.mod; `needs_c`: it links against the C library.
    """

    name: str
    package: str
    link_flags: tuple[str, ...] = ()
    module: str = "."
    tags: str = ""
    needs_c: bool = False


def module_version(go_mod: str, module: str) -> str:
    """Return the version at which `go_mod` (its text) requires `module`, such as `v1.34.4`."""
    match = re.search(rf"^\s*{re.escape(module)} (v\S+)", go_mod, re.MULTILINE)
    if match is None:
        raise BuildError(f"go.mod does not require {module}; add it to the tool block and tidy")
    return match[1]


def components(go_mod: str) -> tuple[Component, ...]:
    """Return all components that are built from `go_mod` (its text), in building order."""
    kubernetes = module_version(go_mod, "k8s.io/kubernetes")
    containerd = module_version(go_mod, "github.com/containerd/containerd/v2")
    major, minor = kubernetes.removeprefix("v").split(".")[:2]
    # Without a version the components call themselves v0.0.0 and skew checks refuse them.
    base = "-X k8s.io/component-base/version.git"
    told = (f"{base}Version={kubernetes}", f"{base}Major={major}", f"{base}Minor={minor}")
    containerd_package = "github.com/containerd/containerd/v2"
    containerd_told = (f"-X {containerd_package}/version.Version={containerd}",)
    plugins = "github.com/containernetworking/plugins/plugins"
    return (
        Component("workload", "./workload"),
        Component("pause", "./pause"),
        Component("host-local", f"{plugins}/ipam/host-local"),
        Component("loopback", f"{plugins}/main/loopback"),
        Component("ptp", f"{plugins}/main/ptp"),
        # Without seccomp, which is a C library, runc refuses every sandbox. It has a go.mod of its
        # own: its 1.3 needs runtime-spec 1.2, containerd's 2.2 needs 1.3, Kubernetes' 1.34
        # does not compile with runc 1.4's cgroups.
        Component(
            "runc",
            "github.com/opencontainers/runc",
            module="runc",
            tags="seccomp",
            needs_c=True,
        ),
        Component("ctr", f"{containerd_package}/cmd/ctr", containerd_told),
        Component(
            "containerd-shim-runc-v2",
            f"{containerd_package}/cmd/containerd-shim-runc-v2",
            containerd_told,
        ),
        Component("containerd", f"{containerd_package}/cmd/containerd", containerd_told),
        Component("etcd", "go.etcd.io/etcd/server/v3"),
        Component("kubectl", "k8s.io/kubernetes/cmd/kubectl", told),
        Component("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler", told),
        Component("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", told),
        Component("kubelet", "k8s.io/kubernetes/cmd/kubelet", told),
        Component("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager", told),
    )


def binaries_folder() -> Path:
    """Return the folder of the binaries, named by everything they are built from."""
    digest = hashlib.sha256()
    sources = [Path(__file__), *SOURCES.rglob("go.*"), *SOURCES.rglob("*.go")]
    for path in sorted(sources):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return cache_root() / digest.hexdigest()[:16] / "bin"


def build(progress: Progress) -> Path:
    """Build what is not yet in the cache and return the folder of all binaries.

    Builders that run at the same time wait for each other; one that was cut off is continued.
    Raises HostError for a missing compiler, BuildError for anything the compiler says.
    """
    go_mod = SOURCES / "go.mod"
    wanted = components(go_mod.read_text(encoding="utf-8"))
    folder = binaries_folder()
    if all((folder / component.name).exists() for component in wanted):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder.parent / "build.lock"):
        missing = [each for each in wanted if not (folder / each.name).exists()]
        if missing:
            provide(BUILD_NEEDS)
            go = go_command(go_mod, cache_root())
            for component in missing:
                _build_one(component, folder, go, progress, of=wanted)
    return folder


def _build_one(
    component: Component, folder: Path, go: Path, progress: Progress, *, of: tuple[Component, ...]
) -> None:
    place = f"{of.index(component) + 1} of {len(of)}"
    progress(f"building {component.name} ({place}) ...")
    started = time.monotonic()
    partial = folder / f".{component.name}.partial"
    flags = " ".join((*_STRIPPED, *component.link_flags))
    command = [str(go), "build", "-trimpath", "-ldflags", flags, "-o", str(partial)]
    if component.tags:
        command += ["-tags", component.tags]
    env = {**go_environment(cache_root()), "CGO_ENABLED": "1" if component.needs_c else "0"}
    done = subprocess.run(
        [*command, component.package],
        cwd=SOURCES / component.module,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        text=True,
        errors="replace",
    )
    if done.returncode != 0:
        words = "\n".join(done.stdout.splitlines()[-_LAST_LINES:])
        raise BuildError(f"{component.name} ({component.package}) did not build:\n{words}")
    partial.rename(folder / component.name)
    progress(f"built {component.name} ({place}) in {time.monotonic() - started:.0f} s")
