"""The stand-in for nvidia-container-cli gives a container only the named cards."""

import os
import platform
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from localcluster import driver
from localcluster.nvml import STATE_VARIABLE, CardSpec, write_state
from localcluster.toolkit import container_cli

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        platform.system() != "Linux" or os.geteuid() != 0,
        reason="needs root on Linux for mounts and device nodes",
    ),
]

CARDS = [CardSpec("GPU-a", minor=3), CardSpec("GPU-b", minor=1), CardSpec("GPU-c", minor=0)]
CONTROL = {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"}


@dataclass(frozen=True)
class Container:
    """A process in its own mount namespace, with an empty root folder."""

    pid: int
    rootfs: Path
    driver_root: Path
    state: Path

    def configure(self, device: str) -> subprocess.CompletedProcess[str]:
        """Call the program as NVIDIA's hook does before a container starts."""
        words = [f"--root={self.driver_root}", "configure", "--no-cgroups", "--compute"]
        words += ["--utility", f"--device={device}", f"--pid={self.pid}", str(self.rootfs)]
        return subprocess.run(
            [container_cli(print), *words],
            env={STATE_VARIABLE: str(self.state)},
            capture_output=True,
            text=True,
            check=False,
        )

    def listed(self, folder: str) -> set[str]:
        """Return what is in a folder of the container, as seen in its namespace."""
        enter = ["nsenter", f"--target={self.pid}", "--mount", "ls", self.rootfs / folder]
        return set(
            subprocess.run(enter, capture_output=True, text=True, check=False).stdout.split()
        )


@pytest.fixture
def container(tmp_path: Path, library: Path) -> Iterator[Container]:
    root, rootfs, state = (tmp_path / name for name in ("driver", "rootfs", "state"))
    root.mkdir()
    (rootfs / "dev").mkdir(parents=True)
    driver.install(root, library, CARDS)
    write_state(state, CARDS)
    ready = 'mount -t tmpfs tmpfs "$1/dev" && echo ready && exec sleep 60'
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", ready, "sh", rootfs]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield Container(process.pid, rootfs, root, state)
        process.kill()


@pytest.mark.parametrize(
    ("device", "nodes"),
    [
        ("GPU-a", {"nvidia3"}),
        ("GPU-c,GPU-b", {"nvidia0", "nvidia1"}),
        ("0", {"nvidia3"}),
        ("all", {"nvidia0", "nvidia1", "nvidia3"}),
    ],
)
def test_only_named_cards_get_nodes(container: Container, device: str, nodes: set[str]) -> None:
    assert container.configure(device).returncode == 0
    assert container.listed("dev") == CONTROL | nodes
    assert "libnvidia-ml.so.1" in container.listed(driver.LIBRARIES)


def test_an_unknown_card_is_an_error_and_changes_nothing(container: Container) -> None:
    done = container.configure("GPU-a,GPU-unknown")
    assert done.returncode == 1
    assert "GPU-unknown: unknown device" in done.stderr
    assert container.listed("dev") == set()
    assert not any(path.name != "dev" for path in container.rootfs.iterdir())
