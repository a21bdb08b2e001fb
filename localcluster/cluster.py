"""The public face of a local cluster."""

import json
import os
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from localcluster import driver, namespaces, nvml, outage, teardown
from localcluster.api import Api
from localcluster.bringup import Plan, await_ready, bring_up, ready_condition
from localcluster.build import Progress, build
from localcluster.control import Control, ProcessStatus, base_environment
from localcluster.errors import LocalClusterError, StateError, UsageError
from localcluster.host import RUN_NEEDS, check_host, provide
from localcluster.interrupts import undisturbed
from localcluster.network import NetworkPlan
from localcluster.paper import add_paper_nodes, delete_pods_of
from localcluster.pki import write_kubeconfig
from localcluster.run import run
from localcluster.runtimes import provide_runtimes
from localcluster.specs import NodeSpec, PaperNode, check_nodes
from localcluster.state import (
    DEFAULT_NAME,
    StateFolder,
    cache_root,
    check_name,
    locked,
    state_root,
)
from localcluster.supervised import ProcessSpec
from localcluster.toolkit import provide_toolkits
from localcluster.versions import DEFAULT, Features, Version, version

__all__ = ["Cluster", "NodeSpec", "PaperNode"]

_TOKEN_SECONDS = 365 * 24 * 3600  # as long as anyone may leave a cluster up; nothing renews it
_BINDS_TOKENS_TO_NODES = Version(29)


def _quiet(_: str) -> None:
    pass


@dataclass(frozen=True)
class Cluster:
    """A cluster that is up. Its processes outlive this object and this Python process.

    Methods raise StateError if the cluster is no longer up, UsageError for an unknown name. Both
    are LocalClusterErrors, as is every error that this package raises on purpose.
    """

    state: StateFolder
    binaries: Path
    network: NetworkPlan
    node_names: tuple[str, ...]
    control_plane: str | None = None
    version: Version = DEFAULT
    features: Features = field(default_factory=Features)

    @classmethod
    def up(
        cls,
        nodes: Sequence[NodeSpec] = (NodeSpec("n1"),),
        paper_nodes: Sequence[PaperNode] = (),
        *,
        name: str = DEFAULT_NAME,
        version: Version = DEFAULT,
        features: Features | None = None,
        scheduler_config: Path | None = None,
        archives: Sequence[Path] = (),
        api_server_flags: Sequence[str] = (),
        progress: Progress = _quiet,
    ) -> Self:
        """Build what is missing, start everything, and return once all nodes are Ready.

        `version` is that of Kubernetes, `features` are turned on in its components.
        `scheduler_config` is a KubeSchedulerConfiguration, used as it is except for the kubeconfig
        and leader election. The images of `archives` are available on every node.
        `api_server_flags` are added to the API server's. `progress` is called with one line at a
        time. What an earlier, broken cluster of this name left behind is removed first. Raises
        StateError if one is already up. After any other failure, nothing is left running.
        """
        state = StateFolder.of(name)
        real, paper = tuple(nodes), tuple(paper_nodes)
        check_nodes(real, paper)
        check_host()
        provide(RUN_NEEDS)
        binaries = build(progress, version)
        runtimes = provide_runtimes({each.runtime for each in real}, binaries, progress)
        plan = Plan(
            state,
            version,
            features or Features(),
            binaries,
            runtimes,
            real,
            paper,
            scheduler_config,
            tuple(archives),
            tuple(api_server_flags),
        )
        provide_toolkits((node.setup for node in real if node.cards), progress)
        with locked(state_root() / f".{name}.lock"):
            if Control(state).alive():
                text = (
                    f"the cluster {name!r} is up already; use it, or take it down first:"
                    f" python -m localcluster down --name {name}"
                )
                raise StateError(text)
            for removed in teardown.remove(state):
                progress(f"left over from before, removed: {removed}")
            try:
                bring_up(plan, progress)
            except BaseException as problem:
                with undisturbed():
                    try:
                        teardown.remove(state)
                    except LocalClusterError as left:
                        problem.add_note(f"and it could not be taken down: {left}")
                raise
        return cls.attach(name)

    @classmethod
    def attach(cls, name: str = DEFAULT_NAME) -> Self:
        """Return the cluster of this name; raise StateError if it is not up."""
        state = StateFolder.of(name)
        Control(state).status()
        record = json.loads(state.record.read_text(encoding="utf-8"))
        return cls(
            state,
            Path(record["binaries"]),
            NetworkPlan(record["block"]),
            tuple(record["nodes"]),
            record["controlPlane"],
            version(record["version"]),
            Features(record["gates"], record["apis"]),
        )

    def down(self) -> None:
        """Remove everything that belongs to the cluster, if anything is left."""
        with undisturbed():
            teardown.down(self.state)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.state.admin_kubeconfig

    @property
    def server(self) -> str:
        """The API server's address, the same on the host and inside every node."""
        return self.network.server

    def api(self) -> Api:
        """Return a new connection to the API server as administrator."""
        # On a machine that several clusters share, a large pod may be written for 10 s.
        return Api(self.state, self.network.host, seconds=30)

    def kubectl(self, *arguments: str, stdin: str | None = None, seconds: float = 60) -> str:
        """Run kubectl as administrator and return its output; raise CommandError."""
        command = [str(self.binaries / "kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments]
        return run(command, stdin=stdin, seconds=seconds)

    def node_folder(self, node: str) -> Path:
        """Return the folder of a node's files.

        Inside the node, `kubelet` is /var/lib/kubelet, `run` is /run, `cdi` is /etc/cdi, `log` is
        /var/log, and `driver` is /run/nvidia/driver. `nvml` has the state file of its cards.
        """
        self._check_node(node)
        return self.state.node(node)

    def node_address(self, node: str) -> str:
        """Return a real node's address."""
        self._check_node(node)
        return self.network.node(self.node_names.index(node) + 1)

    def card_environment(self, node: str) -> dict[str, str]:
        """Return the variables with which a program sees the node's cards through NVML.

        To change the cards of a running node, call `localcluster.nvml.write_state` with the file
        `nvml/state` in the node's folder. Raises BuildError, HostError.
        """
        folder = self.node_folder(node)
        if (folder / driver.LINK).is_symlink():
            real = folder / "libraries"  # no other of the driver's may come before the system's
            real.mkdir(exist_ok=True)
            (real / nvml.SONAME).unlink(missing_ok=True)
            (real / nvml.SONAME).symlink_to(driver.nvml_library(folder / driver.LINK))
            return {"LD_LIBRARY_PATH": str(real)}
        installed = folder / "driver" / driver.LIBRARIES  # not on a node without cards
        library = installed if installed.exists() else nvml.build(cache_root())
        return nvml.environment(library, folder / "nvml" / "state")

    def start_program(
        self,
        name: str,
        argv: Sequence[str],
        *,
        node: str | None = None,
        env: Mapping[str, str] | None = None,
        restart: bool = True,
    ) -> None:
        """Run the caller's program under supervision, on the host or inside `node`.

        Its environment is `env` and this process's PATH, HOME, LANG, TMPDIR and TZ; its working
        directory is /. With `restart` it is started again whenever it ends: after 0.2 s at first,
        then after longer delays up to 5 s. Raises UsageError if it cannot be started or `name` is
        already running.
        """
        check_name("program", name)
        command = list(argv)
        if node is not None:
            self._check_node(node)
            command = namespaces.enter(self.state, node, command)
        environment = {**base_environment(self.state), **(env or {})}
        spec = ProcessSpec(
            name, tuple(command), environment, program=True, restart=restart, node=node or ""
        )
        self._control.run(spec)

    def start(self, name: str) -> None:
        """Start a stopped component or program again; do nothing if it runs."""
        self._control.start(name)

    def stop(self, name: str, *, grace: float = 10.0) -> None:
        """Stop a component or program until `start`; kill it after `grace` seconds.

        Containers keep running while their kubelet or containerd is stopped.
        """
        self._control.stop(name, grace=grace)

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a component or program. If the signal ends it, it is started again.

        After SIGSTOP it does nothing more once this returns.
        """
        self._control.kill(name, number)

    def restart_node(self, node: str, *, without: Collection[str] = ()) -> None:
        """Cut a node's power and start it again; return once containerd serves.

        Every process inside it is killed, and what a machine keeps in memory is lost: namespaces,
        mounts, cgroups, and /run with its CDI files. Disk, name, addresses, cards and certificates
        stay. Then containerd, the kubelet and the programs start in this order, without waiting for
        each other. Everything named in `without`, or stopped before, stays stopped until `start`.
        The Node may show its old status for some seconds.
        """
        self._check_node(node)
        index = self.node_names.index(node) + 1
        ran = outage.power_off(self.state, index, node)
        names = [each for each in ran if each not in without]
        outage.power_on(self.state, self.network, index, node, names)

    def processes(self) -> list[ProcessStatus]:
        """Return the state of every component and program."""
        return self._control.status()

    def node_readiness(self) -> dict[str, str]:
        """Return for each Node `True`, `False` or `Unknown`; raise ApiError."""
        with self.api() as api:
            items: list[dict[str, Any]] = api.get("/api/v1/nodes")["items"]
        return {each["metadata"]["name"]: ready_condition(each) for each in items}

    def log_path(self, name: str) -> Path:
        """Return the log of a component or program; raise UsageError if it has no log."""
        path = self.state.log(check_name("log", name))
        if path.exists():
            return path
        known = ", ".join(sorted(each.stem for each in self.state.logs.glob("*.log")))
        raise UsageError(f"{name!r} has no log here; there are: {known}")

    def add_paper_nodes(self, *nodes: PaperNode) -> None:
        """Add paper nodes and return once they are Ready."""
        check_nodes((), nodes)
        with self.api() as api:
            add_paper_nodes(api, nodes)
            await_ready(self.state, api, [each.name for each in nodes])

    def remove_paper_nodes(self, *names: str) -> None:
        """Delete the Node objects that exist, and the pods bound to them, which no kubelet ends."""
        with self.api() as api:
            for name in names:
                selected = f"fieldSelector=metadata.name%3D{check_name('node', name)}"
                api.request("DELETE", f"/api/v1/nodes?{selected}")
                delete_pods_of(api, name)

    def service_account_kubeconfig(
        self, namespace: str, name: str, *, node: str | None = None
    ) -> Path:
        """Write a kubeconfig with a token of a ServiceAccount, valid for a year.

        With `node`, the token is bound to that Node and has its name in the user's extra
        `authentication.kubernetes.io/node-name`, from Kubernetes 1.29 on; earlier API servers bind
        no token to a Node. The token file is in the same folder; each call renews it. Raises
        ApiError if the ServiceAccount does not exist.
        """
        spec: dict[str, Any] = {"expirationSeconds": _TOKEN_SECONDS}
        with self.api() as api:
            if node is not None and self.version >= _BINDS_TOKENS_TO_NODES:
                uid = api.get(f"/api/v1/nodes/{node}")["metadata"]["uid"]
                bound = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}
                spec["boundObjectRef"] = bound
            account = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}"
            token: str = api.request("POST", f"{account}/token", {"spec": spec})["status"]["token"]
        stem = ".".join(each for each in (namespace, name, node) if each)
        path = self.state.kubeconfigs / f"{stem}.token"
        partial = path.with_suffix(".partial")
        partial.touch(mode=0o600)
        partial.write_text(token, encoding="utf-8")
        os.replace(partial, path)  # noqa: PTH105 -- readers see the old token or the new
        return write_kubeconfig(
            self.state.kubeconfigs / f"{stem}.kubeconfig",
            server=self.server,
            authority=self.state.pki / "ca.crt",
            user={"tokenFile": str(path)},
        )

    @property
    def _control(self) -> Control:
        return Control(self.state)

    def _check_node(self, node: str) -> None:
        if node not in self.node_names:
            known = ", ".join(self.node_names)
            raise UsageError(f"no real node is called {node!r}; there are: {known}")
