"""A real node: its namespaces, files, container runtime and kubelet."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from localcluster import cgroups, crio, driver, memory_limits, namespaces, network
from localcluster.control import Control, base_environment
from localcluster.network import NetworkPlan
from localcluster.nodefiles import (
    CONTAINERD_SOCKET,
    cni_config,
    containerd_config,
    kubelet_arguments,
    kubelet_config,
    nvidia_runtime_spec,
    snapshotter_for,
)
from localcluster.nvml import build, write_state
from localcluster.run import run
from localcluster.seed import ROOT, STORAGE, plant
from localcluster.specs import NodeSpec
from localcluster.state import StateFolder, cache_root
from localcluster.supervised import ProcessSpec
from localcluster.toolkit import (
    Toolkit,
    config,
    container_cli,
    installed,
    programs,
    spec_command,
    toolkit_of,
)
from localcluster.versions import Features, Version
from localcluster.wait import wait_until

_RUNTIME_SECONDS = 30.0


@dataclass(frozen=True)
class Node:
    """One node during its start; `index` counts from 1.

    `runtime` is the folder of its container runtime's programs.
    """

    state: StateFolder
    plan: NetworkPlan
    spec: NodeSpec
    index: int
    binaries: Path
    runtime: Path
    version: Version
    features: Features

    @property
    def folder(self) -> Path:
        return self.state.node(self.spec.name)

    def prepare(self, images: Path) -> None:
        """Create everything that the node's processes need; `images` is a seed's folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._cri_o:
            plant(images / ROOT, self.folder)
        (self.folder / "run" / "cdi").mkdir(parents=True, exist_ok=True)
        (self.folder / "nvml").mkdir(exist_ok=True)
        if self.spec.driver:
            (self.folder / driver.LINK).symlink_to(self.spec.driver)
        namespaces.create(self.state, self.spec.name)
        _, pin = namespaces.pins(self.state, self.spec.name)
        network.join(self.state, self.plan, self.index, pin)
        cgroup = cgroups.create(self.state.cgroup, self.spec.name)
        write_state(self.folder / "nvml" / "state", self.spec.cards)
        if self.spec.cards and not self.spec.driver:
            library = build(cache_root(), limits_memory=self.spec.limits_memory)
            driver.install(self.folder / "driver", library, self.spec.cards)
        self._configure_runtime(images)
        kubelet = kubelet_config(
            self.state,
            self.plan,
            cgroup=cgroup,
            version=self.version,
            static_pods=self.spec.control_plane,
            runtime=crio.SOCKET if self._cri_o else CONTAINERD_SOCKET,
        )
        self._write("kubelet.yaml", kubelet)
        (self.folder / "kubernetes" / "manifests").mkdir()
        self._write("cni.d/10-localcluster.conflist", cni_config(self.plan, self.index))

    @property
    def _cri_o(self) -> bool:
        return self.spec.runtime == "cri-o"

    def _configure_runtime(self, images: Path) -> None:
        runc = self.binaries / "runc"
        if self._cri_o:
            runc = self._write_script("crio/runc", crio.runc_script(runc))
        toolkit = toolkit_of(self.spec.setup) if self.spec.cards else None
        handlers = self._install(toolkit, runc) if toolkit else {}
        default_handler = toolkit.default if toolkit else "runc"
        if self._cri_o:
            files = crio.files(
                folder=self.folder,
                binaries=self.binaries,
                pinns=self.runtime / "pinns",
                images=images / STORAGE,
                handlers={"runc": runc, **handlers},
                default_handler=default_handler,
            )
            for name, text in files.items():
                self._write(f"crio/{name}", text)
            return
        mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
        containerd = containerd_config(
            binaries=self.binaries,
            folder=self.folder,
            snapshotter=snapshotter_for(self.folder, mountinfo),
            cdi=self.spec.cdi,
            version=self.spec.runtime,
            handlers=handlers,
            default_handler=default_handler,
        )
        self._write("containerd.toml", containerd)

    def _install(self, toolkit: Toolkit, runc: Path) -> dict[str, Path]:
        """Install NVIDIA's toolkit on top of `runc`; return its handlers with their programs."""
        own = installed() if self.spec.driver else None
        folder, cli = own or (programs(toolkit.version, print), container_cli(print))
        hook = None
        if self.spec.limits_memory and not cgroups.is_unified():
            script = memory_limits.hook_script(folder / "nvidia-cdi-hook")
            hook = self._write_script(memory_limits.HOOK, script)
        text = config(toolkit, folder=folder, runc=runc, cli=cli, hook=hook)
        self._write("toolkit/config.toml", text)
        default = run([self.binaries / "ctr", "oci", "spec"])
        spec = nvidia_runtime_spec(default, cards=self.folder / "nvml")
        self._write("nvidia-runtime.json", spec)
        if toolkit.spec:
            command = spec_command(toolkit, folder, hook)
            run(namespaces.enter(self.state, self.spec.name, command))
        return {name: folder / program for name, program in toolkit.handlers.items()}

    def start_runtime(self, control: Control) -> None:
        """Start the container runtime and return once it serves."""
        if self._cri_o:
            program, env = "crio", crio.environment(self.folder)
            options: list[str | Path] = ["--config", self.folder / "crio" / "crio.conf"]
            options += ["--config-dir", ""]
        else:
            program, env = "containerd", {}
            options = ["--config", self.folder / "containerd.toml"]
        name = f"{program}-{self.spec.name}"
        control.run(self._process(name, [self.runtime / program, *options], env))
        await_runtime(self.state, name, self.spec.name)

    def start_kubelet(self, control: Control) -> None:
        """Start the kubelet."""
        name = self.spec.name
        arguments = kubelet_arguments(self.state, self.plan, name, self.index)
        arguments += self.features.gate_flags
        control.run(self._process(f"kubelet-{name}", [self.binaries / "kubelet", *arguments]))

    def _process(
        self, name: str, argv: list[str | Path], more: Mapping[str, str] | None = None
    ) -> ProcessSpec:
        env = {**base_environment(self.state), **(more or {})}
        # containerd finds its shim in PATH.
        env["PATH"] = f"{self.runtime}:{self.binaries}:{env['PATH']}"
        entered = namespaces.enter(self.state, self.spec.name, [str(word) for word in argv])
        return ProcessSpec(name, tuple(entered), env, node=self.spec.name)

    def _write_script(self, name: str, text: str) -> Path:
        self._write(name, text)
        path = self.folder / name
        path.chmod(0o755)
        return path

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def await_runtime(state: StateFolder, name: str, node: str) -> None:
    """Return once a node's runtime `name` has created its socket; raise DeadlineError."""
    place = crio.SOCKET if name.startswith("crio-") else CONTAINERD_SOCKET
    socket = state.node(node) / place.removeprefix("/")
    wait_until(
        f"{name} to make its socket",
        lambda: None if socket.exists() else "no socket",
        seconds=_RUNTIME_SECONDS,
        log=state.log(name),
    )
