"""NVIDIA's own hook with what the plugin gives a container: nothing reserved, the GPU not cut.

The hook and the CDI file are those of NVIDIA's toolkit; only the driver is a stand-in. It runs in a
mount namespace with cgroup v2, which this machine need not use itself.
"""

import json
import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from deviceplugin.allocation.rules import Grant
from deviceplugin.cdi.nvidia_edits import NvidiaSpecs
from deviceplugin.cdi.spec_files import Given, Specs
from gpushare.cards.model import Card, ContainerRequest, Request
from localcluster import driver
from localcluster.nvml import CardSpec, environment, write_state
from localcluster.toolkit import programs
from tests.fakes.pods import pod

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        platform.system() != "Linux" or os.geteuid() != 0,
        reason="needs root on Linux for mounts and device nodes",
    ),
]

MIB = 1 << 20
SPECS = [CardSpec("GPU-a", mem_mib=16_384), CardSpec("GPU-b", mem_mib=81_920)]
CARDS = tuple(
    Card(index, each.uuid, 16, minor=index, memory_mib=each.mem_mib)
    for index, each in enumerate(SPECS)
)
NAMESPACE = """
bundle=$1; shift
mount --make-rprivate / && umount -l /sys/fs/cgroup || exit 77
mount -t cgroup2 none /sys/fs/cgroup || exit 77
leaf=/sys/fs/cgroup/gpushare-limits-$$
mkdir $leaf || exit 77
sleep 60 & pid=$!
echo $pid > $leaf/cgroup.procs
state='{"ociVersion":"1.2.0","id":"x","status":"creating","pid":%d,"bundle":"%s"}'
printf "$state" $pid "$bundle" | "$@"
code=$?
kill $pid; wait $pid 2>/dev/null
for _ in 1 2 3 4 5 6 7 8 9; do rmdir $leaf && break; sleep 0.1; done 2>/dev/null
exit $code
"""


@dataclass(frozen=True)
class Node:
    """A node's driver and NVIDIA's CDI file for it."""

    folder: Path
    variables: dict[str, str]

    def start(self, own: dict[str, str], given: dict[str, str]) -> tuple[int, list[list[str]]]:
        """Start a container with both cards; return the hook's code, and what the driver was told.

        ``own`` are the pod's variables; those of the CDI file replace them, as in containerd.
        """
        edits = NvidiaSpecs([self.folder / "cdi"], self.folder / "none").edits(CARDS)
        Specs(self.folder / "shares").write("share", Given("uid", given, edits))
        (path,) = (self.folder / "shares").glob("*.json")
        (device,) = json.loads(path.read_text())["devices"]
        content = device["containerEdits"]
        hooks = [each for each in content["hooks"] if "apply-cuda-memory-limits" in each["args"]]
        assert len(hooks) == len(CARDS)
        bundle = self.folder / "bundle"
        bundle.mkdir(exist_ok=True)
        merged = own | dict(text.split("=", 1) for text in content["env"])
        process = {"env": [f"{name}={value}" for name, value in merged.items()]}
        (bundle / "config.json").write_text(
            json.dumps({"ociVersion": "1.2.0", "process": process, "root": {"path": "r"}})
        )
        told = self.folder / "told"
        told.write_text("")
        for hook in hooks:
            command = [hook["path"], *hook["args"][1:]]
            done = subprocess.run(
                ["unshare", "--mount", "sh", "-c", NAMESPACE, "sh", bundle, *command],
                env={**os.environ, **self.variables, "NVML_STANDIN_LIMITS": str(told)},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode == 77:
                pytest.skip(f"no cgroup v2 can be mounted here: {done.stderr[-200:]}")
            if done.returncode:
                return done.returncode, []
        return 0, [line.split("\t") for line in told.read_text().splitlines()]


def node(folder: Path, library: Path) -> Node:
    tools = programs("1.20", print)
    root = folder / "driver"
    root.mkdir()
    driver.install(root, library, SPECS)
    write_state(folder / "state", SPECS)
    variables = environment(library, folder / "state")
    command = [tools / "nvidia-ctk", "cdi", "generate", f"--driver-root={root}"]
    command += [f"--dev-root={root}", f"--nvidia-cdi-hook-path={tools / 'nvidia-cdi-hook'}"]
    command += ["--device-name-strategy=uuid", f"--output={folder / 'cdi' / 'nvidia.yaml'}"]
    subprocess.run(command, env={**os.environ, **variables}, capture_output=True, check=True)
    return Node(folder, variables)


def given(*, guards: bool) -> dict[str, str]:
    request = Request((ContainerRequest("main", 8),), card_count=2)
    return Grant(pod("a", 8), request, CARDS).environment("main", "cdi", guards=guards)


OWN = {"NVIDIA_GPU_MEMORY_REQUEST": "70000"}


@pytest.mark.parametrize("own", [{}, OWN, {"NVIDIA_GPU_MEMORY_LIMIT": "8Gi"}])
def test_whatever_a_pod_sets_nothing_is_reserved_and_no_gpu_is_cut(
    tmp_path: Path, limiting_library: Path, own: dict[str, str]
) -> None:
    code, told = node(tmp_path, limiting_library).start(own, given(guards=True))
    assert code == 0
    assert [(uuid, int(soft), int(hard) // MIB) for uuid, _, soft, hard in told] == [
        ("GPU-a", 0, 81_920),
        ("GPU-b", 0, 81_920),
    ]


def test_without_the_plugins_variables_a_pod_would_reserve_memory(
    tmp_path: Path, limiting_library: Path
) -> None:
    code, told = node(tmp_path, limiting_library).start(OWN, given(guards=False))
    assert code == 0
    assert {int(soft) // MIB for _, _, soft, _ in told} == {70_000}


def test_an_older_driver_starts_containers_only_without_the_variables(
    tmp_path: Path, library: Path
) -> None:
    older = node(tmp_path, library)
    assert older.start({}, given(guards=False)) == (0, [])
    assert older.start({}, given(guards=True))[0] != 0
