"""The folder of a cluster's files, and the names derived from its path."""

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from localcluster.errors import UsageError

DEFAULT_NAME = "gpushare"
MARKER = "LOCALCLUSTER_STATE"
"""Environment variable that every process of a cluster carries; `down` finds them by it."""

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_PLAIN_PATH = re.compile(r"[A-Za-z0-9./_+-]+")
_SOCKET_PATH_BYTES = 107


def check_name(kind: str, name: str) -> str:
    """Return `name`; raise UsageError if it is not a valid name for a `kind`."""
    if _NAME.fullmatch(name):
        return name
    text = (
        f"{name!r} is no name for a {kind}: wanted at most 32 lower-case letters, digits and"
        " inner hyphens; choose such a name"
    )
    raise UsageError(text)


def state_root() -> Path:
    """Return the folder that holds one folder for each cluster."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base).absolute() / "gpushare" / "localcluster"


def cache_root() -> Path:
    """Return the folder of build results, shared by all clusters."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "gpushare" / "localcluster"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path` (created if absent) against other processes and threads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class StateFolder:
    """The paths of one cluster and the system-wide names that belong to it.

    The names are pure functions of the folder, so `down` needs no record of `up`.
    """

    name: str
    path: Path

    @classmethod
    def of(cls, name: str) -> "StateFolder":
        """Return the folder of the cluster called `name`, whether it exists or not."""
        found = cls(check_name("cluster", name), (state_root() / name).resolve())
        if not _PLAIN_PATH.fullmatch(str(found.path)):
            text = (
                f"{found.path} has characters that mount and ip do not take; set XDG_STATE_HOME to"
                " a folder of letters, digits and ./_+-"
            )
            raise UsageError(text)
        if len(os.fsencode(found.control_socket)) > _SOCKET_PATH_BYTES:
            text = (
                f"{found.control_socket} is too long for a socket (at most {_SOCKET_PATH_BYTES}"
                " bytes); set XDG_STATE_HOME to a shorter folder"
            )
            raise UsageError(text)
        return found

    @property
    def ident(self) -> str:
        """Eight characters that distinguish this cluster from any other on the machine."""
        return hashlib.sha256(os.fsencode(self.path)).hexdigest()[:8]

    @property
    def link_prefix(self) -> str:
        """The common prefix of the cluster's network interfaces on the host."""
        return f"lc{self.ident}"

    @property
    def cgroup(self) -> str:
        """Name of the cluster's cgroup, directly under the root of each hierarchy."""
        return f"localcluster-{self.name}-{self.ident}"

    @property
    def control_socket(self) -> Path:
        return self.path / "control.sock"

    @property
    def record(self) -> Path:
        """The file that describes the cluster; it exists once `up` has begun."""
        return self.path / "cluster.json"

    @property
    def pki(self) -> Path:
        return self.path / "pki"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def config(self) -> Path:
        return self.path / "config"

    @property
    def kubeconfigs(self) -> Path:
        return self.path / "kubeconfigs"

    @property
    def admin_kubeconfig(self) -> Path:
        return self.kubeconfigs / "admin.kubeconfig"

    @property
    def namespaces(self) -> Path:
        """The folder that pins the nodes' mount and network namespaces."""
        return self.path / "namespaces"

    def node(self, name: str) -> Path:
        """Return the folder of one node's files."""
        return self.path / "nodes" / name

    def log(self, name: str) -> Path:
        """Return the log file of a component or program, whether it exists or not."""
        return self.logs / f"{name}.log"

    def create(self) -> None:
        """Create the folder and its subfolders, readable only by the owner."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o700)
        for room in (self.pki, self.logs, self.config, self.kubeconfigs, self.namespaces):
            room.mkdir(exist_ok=True)

    def remove(self) -> None:
        """Remove the folder with its contents; nothing may be mounted there."""
        shutil.rmtree(self.path, ignore_errors=False)
