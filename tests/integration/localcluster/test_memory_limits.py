"""NVIDIA's own hook: what it sets for which variables, and with those that the plugin gives.

The hook and the CDI file are those of NVIDIA's toolkit; only the driver is a stand-in. On machines
with cgroup v1, the hook runs in a mount namespace with cgroup v2.
"""

import json
import os
import platform
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest

from deviceplugin.allocation.rules import Grant
from deviceplugin.cards.survey import Terms, survey
from deviceplugin.cdi.nvidia_edits import NvidiaSpecs
from deviceplugin.cdi.spec_files import Given, Specs
from deviceplugin.driver.interface import PhysicalCard
from deviceplugin.isolation.variables import Enforcement
from gpushare.cards.model import Card, ContainerRequest, Request, Share
from gpushare.cards.reserve import parse_reserve
from gpushare.ledger.ledger import Ledger
from localcluster import cgroups, driver
from localcluster.errors import HostError
from localcluster.nvml import (
    NO_LIMIT,
    CardSpec,
    environment,
    hard_limits,
    read_limits,
    write_state,
)
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
WHOLE = 81_920
SPECS = [CardSpec("GPU-a", mem_mib=WHOLE), CardSpec("GPU-b", mem_mib=WHOLE)]
CARDS = tuple(
    Card(index, each.uuid, 16, minor=index, memory_mib=each.mem_mib)
    for index, each in enumerate(SPECS)
)
REQUEST, LIMIT = "NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT"
GUARD = [f"{REQUEST}=0", f"{LIMIT}=8192"]
WITHOUT_CGROUP_V2 = 'mount -n -t tmpfs none /sys/fs/cgroup && exec "$@"'

Rows = list[tuple[str, int, int | None]]
"""Each card's soft and hard limit in MiB; None for no limit."""


@dataclass(frozen=True)
class Node:
    """A node's driver, NVIDIA's CDI file for it, and a container that is created on it."""

    folder: Path
    library: Path
    leaf: Path
    pid: int

    def install(self, specs: Sequence[CardSpec]) -> None:
        """Install the driver, and write NVIDIA's CDI file."""
        root = self.folder / "driver"
        root.mkdir()
        driver.install(root, self.library, specs)
        write_state(self.folder / "state", specs)
        tools = programs("1.20", print)
        command = [tools / "nvidia-ctk", "cdi", "generate", f"--driver-root={root}"]
        command += [f"--dev-root={root}", f"--nvidia-cdi-hook-path={tools / 'nvidia-cdi-hook'}"]
        command += ["--device-name-strategy=uuid", f"--output={self.folder / 'cdi/nvidia.yaml'}"]
        subprocess.run(command, env=self._environment, capture_output=True, check=True)

    def share(self, given: dict[str, str]) -> dict:
        """Return the plugin's CDI edits for a container with both cards and these variables."""
        edits = NvidiaSpecs([self.folder / "cdi"], self.folder / "none").edits(CARDS)
        Specs(self.folder / "shares").write("share", Given("uid", given, edits))
        (path,) = (self.folder / "shares").glob("*.json")
        (device,) = json.loads(path.read_text())["devices"]
        return device["containerEdits"]

    def start(
        self, told: dict[str, str], own: dict[str, str], given: dict[str, str]
    ) -> tuple[int, Rows]:
        """Start a container with both cards; return the hooks' first error, or 0, and the limits.

        Its variables are those of Allocate's answer, of the pod and of the CDI file, in the order
        that containerd gives them.
        """
        content = self.share(given)
        variables = [f"{name}={value}" for each in (told, own) for name, value in each.items()]
        variables += content["env"]
        hooks = [each for each in content["hooks"] if "apply-cuda-memory-limits" in each["args"]]
        assert len(hooks) == len(CARDS)
        codes = (
            self.hook(variables, [hook["path"], *hook["args"][1:]]).returncode for hook in hooks
        )
        return next((code for code in codes if code), 0), self.rows()

    def hook(
        self, variables: list[str] | None, command: Sequence[str] = (), wrapper: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run the hook for the container, as runc does; by default for the first card.

        ``variables`` are those of the container's OCI specification; None: it has none.
        ``wrapper`` is a command that runs another, instead of the one that gives cgroup v2.
        """
        bundle = self.folder / "bundle"
        bundle.mkdir(exist_ok=True)
        if variables is not None:
            document = {"ociVersion": "1.2.0", "process": {"env": variables}, "root": {"path": "r"}}
            (bundle / "config.json").write_text(json.dumps(document))
        state = {"ociVersion": "1.2.0", "id": "x", "status": "creating", "pid": self.pid}
        words = list(command) or self.command("GPU-a")
        return subprocess.run(
            [*wrapper, *words] if wrapper else cgroups.as_unified(words),
            input=json.dumps({**state, "bundle": str(bundle)}),
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def command(self, *uuids: str) -> list[str]:
        """Return the hook's command for these cards."""
        words = [str(programs("1.20", print) / "nvidia-cdi-hook"), "apply-cuda-memory-limits"]
        cards = [word for uuid in uuids for word in ("--gpu-id", uuid)]
        return [*words, "--driver-root", str(self.folder / "driver"), *cards]

    def rows(self) -> Rows:
        """Return the limits of the container's cgroup."""
        found = read_limits(self.folder)
        assert {each.cgroup for each in found} <= {f"/{self.leaf.name}"}
        return [
            (each.uuid, each.soft // MIB, None if each.hard == NO_LIMIT else each.hard // MIB)
            for each in found
        ]

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, **environment(self.library, self.folder / "state")}


@contextmanager
def running(name: str) -> Iterator[tuple[Path, int]]:
    """Return the leaf of cgroup v2 of a process, and its ID."""
    try:
        leaf = cgroups.unified() / f"gpushare-limits-{os.getpid()}-{name}"
        leaf.mkdir()
    except (HostError, OSError) as problem:
        pytest.skip(f"no cgroup v2 can be used here: {problem}")
    with subprocess.Popen(["sleep", "600"]) as process:
        (leaf / "cgroup.procs").write_text(f"{process.pid}")
        yield leaf, process.pid
        process.kill()
    leaf.rmdir()


@pytest.fixture
def container() -> Iterator[tuple[Path, int]]:
    with running("main") as made:
        yield made


@pytest.fixture
def node(tmp_path: Path, limiting_library: Path, container: tuple[Path, int]) -> Node:
    made = Node(tmp_path, limiting_library, *container)
    made.install(SPECS)
    return made


@pytest.fixture
def older(tmp_path: Path, library: Path, container: tuple[Path, int]) -> Node:
    """The same node with a driver that cannot limit memory."""
    made = Node(tmp_path, library, *container)
    made.install(SPECS)
    return made


@pytest.mark.parametrize(
    ("variables", "soft", "hard"),
    [
        (GUARD, 0, 8192),
        ([f"{LIMIT}=8192"], 8192, 8192),  # a limit alone is also reserved
        ([f"{REQUEST}=70000"], 70_000, None),
        ([*GUARD, f"{LIMIT}=99999"], 0, 8192),  # the first one counts
        ([f"{LIMIT}=50000", *GUARD], 0, 50_000),
    ],
)
def test_the_hook_sets_what_the_variables_say(
    node: Node, variables: list[str], soft: int, hard: int | None
) -> None:
    done = node.hook(["PATH=/", *variables])
    assert (done.returncode, node.rows()) == (0, [("GPU-a", soft, hard)])


def test_the_hook_sets_the_same_for_each_card(node: Node) -> None:
    done = node.hook(GUARD, node.command("GPU-a", "GPU-b"))
    assert done.returncode == 0
    assert node.rows() == [("GPU-a", 0, 8192), ("GPU-b", 0, 8192)]


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ([f"{REQUEST}=9000", f"{LIMIT}=8192"], "exceeds memory limit"),
        ([f"{REQUEST}=0", f"{LIMIT}=8Gi"], "failed to parse NVIDIA_GPU_MEMORY_LIMIT"),
        ([f"{REQUEST}=0", f"{LIMIT}="], "failed to parse NVIDIA_GPU_MEMORY_LIMIT"),
        ([f"{REQUEST}=0", f"{LIMIT}={WHOLE + 1}"], "Invalid Argument"),  # of NVML's own header
    ],
)
def test_the_hook_fails_the_container_for_amounts_that_cannot_be(
    node: Node, variables: list[str], why: str
) -> None:
    done = node.hook(variables)
    assert (done.returncode, node.rows()) == (1, [])
    assert why in done.stderr


def test_without_variables_the_hook_does_nothing(node: Node) -> None:
    assert (node.hook(["PATH=/"]).returncode, node.rows()) == (0, [])


def test_where_the_hook_cannot_read_the_specification_it_sets_nothing_and_says_success(
    node: Node,
) -> None:
    assert (node.hook(None).returncode, node.rows()) == (0, [])


def test_on_cgroup_v1_the_hook_fails_a_container_with_variables_and_no_other(node: Node) -> None:
    v1 = ["unshare", "--mount", "sh", "-c", WITHOUT_CGROUP_V2, "sh"]
    done = node.hook(GUARD, wrapper=v1)
    assert (done.returncode, node.rows()) == (1, [])
    assert "only supported in cgroup v2" in done.stderr
    assert node.hook(["PATH=/"], wrapper=v1).returncode == 0


def test_an_older_driver_fails_a_container_with_variables_and_no_other(older: Node) -> None:
    assert older.hook(["PATH=/"]).returncode == 0
    done = older.hook(GUARD)
    assert (done.returncode, older.rows()) == (127, [])
    assert "nvmlDeviceSetMemoryLimits_v1" in done.stderr


LIMITED = Enforcement(is_limited=True)
GUARDED = Enforcement(why_not_promised="off", guards=True)
OPEN = Enforcement(why_not_promised="the driver cannot")
UNITS = 8  # of both cards together
OWN = {REQUEST: "70000"}
SHARE = UNITS * 1024 // len(CARDS)


def grant() -> Grant:
    request = Request((ContainerRequest("main", UNITS),), card_count=len(CARDS))
    return Grant(pod("a", UNITS), request, CARDS, 1024)


def given(enforcement: Enforcement) -> dict[str, str]:
    """Return the plugin's variables for a container with both cards, in its CDI file."""
    return grant().environment(["main"], "cdi", enforcement, {})


def told(enforcement: Enforcement) -> dict[str, str]:
    """Return those that Allocate answers with."""
    return enforcement.for_the_hook(grant().share_mib(UNITS))


@pytest.mark.parametrize("own", [{}, OWN, {LIMIT: "8Gi"}, {LIMIT: "99999", REQUEST: "1"}])
def test_whatever_a_pod_sets_each_card_has_the_limit_and_nothing_is_reserved(
    node: Node, own: dict[str, str]
) -> None:
    code, rows = node.start(told(LIMITED), own, given(LIMITED))
    assert (code, rows) == (0, [("GPU-a", 0, SHARE), ("GPU-b", 0, SHARE)])


@pytest.mark.parametrize("own", [{}, OWN])
def test_where_nothing_is_limited_a_pod_reserves_nothing_either(
    node: Node, own: dict[str, str]
) -> None:
    assert node.start(told(GUARDED), own, given(GUARDED)) == (0, [])


def test_without_the_plugins_variables_a_pod_would_reserve_memory(node: Node) -> None:
    code, rows = node.start({}, OWN, given(OPEN))
    assert (code, rows) == (0, [("GPU-a", 70_000, None), ("GPU-b", 70_000, None)])


def test_an_older_driver_starts_containers_only_without_the_plugins_variables(older: Node) -> None:
    assert older.start({}, {}, given(OPEN)) == (0, [])
    code, rows = older.start(told(LIMITED), {}, given(LIMITED))
    assert (code != 0, rows) == (True, [])


class Walk:
    """Pods that come and go on the first card of a node, as the ledger has room for them."""

    def __init__(self, node: Node, random: Random) -> None:
        self.node, self.random = node, random
        terms = Terms(256, reserve=parse_reserve(random.choice(["0", "512Mi", "3%"])))
        shown = PhysicalCard("GPU-a", 0, "m", WHOLE, reserved_mib=random.choice([0, 500]))
        self.inventory = survey(None, [shown], terms).inventory
        self.least_mib = terms.reserve.of(WHOLE) + (shown.reserved_mib or 0)
        self.ledger = Ledger()
        self.ledger.set_inventory("n", self.inventory)
        self.live: dict[str, ExitStack] = {}

    @property
    def free(self) -> int:
        account = self.ledger.account("n")
        assert account is not None
        return account.cards[0].free

    def start(self, name: str) -> None:
        """Start a pod of one or two containers, by NVIDIA's hook for each of them."""
        most = self.free
        sizes = [self.random.randint(1, most)]
        if sizes[0] > 1 and self.random.random() < 0.5:
            sizes = [sizes[0] - 1, 1]
        self.ledger.put_share(Share(name, "", name, "n", sum(sizes), ("GPU-a",)))
        request = Request(tuple(ContainerRequest(f"c{n}", each) for n, each in enumerate(sizes)))
        grant = Grant(pod(name, sizes), request, self.inventory.cards, self.inventory.unit_mib)
        self.live[name] = stack = ExitStack()
        for each in request.containers:
            leaf, pid = stack.enter_context(running(f"{name}-{each.name}"))
            variables = grant.environment([each.name], "cdi", LIMITED, {})
            words = [f"{key}={value}" for key, value in variables.items()]
            done = replace(self.node, leaf=leaf, pid=pid).hook(words)
            assert done.returncode == 0, done.stderr

    def end(self, name: str) -> None:
        self.live.pop(name).close()
        self.ledger.remove_share(name)


@pytest.mark.parametrize("seed", range(3))
def test_the_limits_on_a_card_are_never_more_than_the_card_less_its_reserve(
    tmp_path: Path, limiting_library: Path, seed: int
) -> None:
    """Read from the stand-in's table."""
    random = Random(seed)
    node = Node(tmp_path, limiting_library, tmp_path, 0)
    node.install(SPECS[:1])
    walk = Walk(node, random)
    fullest = 0
    try:
        for step in range(25):
            if walk.live and (not walk.free or random.random() < 0.4):
                walk.end(random.choice(list(walk.live)))
            else:
                walk.start(f"p{step}")
            now = hard_limits(tmp_path, "GPU-a")
            assert now <= (WHOLE - walk.least_mib) * MIB
            fullest = max(fullest, now)
    finally:
        for name in list(walk.live):
            walk.end(name)
    assert fullest > (WHOLE - walk.least_mib - 8 * 256) * MIB
    assert hard_limits(tmp_path, "GPU-a") == 0
