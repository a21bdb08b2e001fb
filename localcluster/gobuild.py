"""Builds packages of a Go module, and names what they are built from."""

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from localcluster.errors import BuildError, CommandError
from localcluster.run import run
from localcluster.state import cache_root
from localcluster.toolchain import go_command, go_environment

_LAST_LINES: Final = 20
_DOWNLOAD_SECONDS: Final = 300

# The linker drops debug information; without it a package compiles in an eighth less time.
_FAST: Final = "-dwarf=false"
# Code of every Kubernetes program that runs once or hardly at all: clients of all APIs, of which a
# program uses few, and what is neither on the way of a pod to its node nor measured by anything. It
# is not optimized, which takes another tenth less time.
_RARE: Final = (
    "github.com/google/cadvisor",
    "github.com/google/gnostic-models",
    "k8s.io/apiextensions-apiserver/pkg/client",
    "k8s.io/cli-runtime",
    "k8s.io/client-go/applyconfigurations",
    "k8s.io/client-go/informers",
    "k8s.io/client-go/kubernetes",
    "k8s.io/kube-aggregator/pkg/client",
    "k8s.io/kubectl",
    "k8s.io/kubernetes/pkg/controller",
    "k8s.io/kubernetes/pkg/generated",
    "k8s.io/kubernetes/pkg/kubelet",
    "k8s.io/kubernetes/pkg/volume",
    "sigs.k8s.io/kustomize",
)
_COMPILER_FLAGS: Final = (
    f"-gcflags=all={_FAST}",
    *(f"-gcflags={each}/...={_FAST} -N -l" for each in _RARE),
)
# With these, the standard library is the same as for programs that do not link against the C
# library, so it is compiled once for both.
_SAME_LIBRARY: Final = ("netgo", "osusergo")
_MIB: Final = 1024 * 1024
_MOST_HEAP: Final = 768 * _MIB
_LEAST_HEAP: Final = 512 * _MIB


def module_version(folder: Path, module: str) -> str:
    """Return the version, such as `v1.34.4`, at which the go.mod in `folder` requires `module`.

    Raises BuildError if it does not require it.
    """
    text = (folder / "go.mod").read_text(encoding="utf-8")
    match = re.search(rf"^(?:require)?\s*{re.escape(module)} (v\S+)", text, re.MULTILINE)
    if match is None:
        raise BuildError(
            f"{folder / 'go.mod'} does not require {module}; add it to the tool block and tidy"
        )
    return match[1]


def module_folder(folder: Path, module: str) -> Path:
    """Return the folder with all files of a module that the go.mod in `folder` requires.

    It is downloaded if this machine does not have it. Raises BuildError.
    """
    go = go_command(folder / "go.mod", cache_root())
    command = [str(go), "mod", "download", "-json", module]
    environment = go_environment(cache_root())
    try:
        said = run(command, cwd=folder, env=environment, seconds=_DOWNLOAD_SECONDS)
    except CommandError as problem:
        raise BuildError(f"{module} was not downloaded: {problem}") from problem
    return Path(json.loads(said)["Dir"])


def content(folder: Path, packages: Collection[str], how: object) -> str:
    """Return 16 characters that depend only on what builds these packages.

    That is go.mod and go.sum in `folder`, the sources of the module's own packages (they begin with
    `./`), and the printed form of `how` they are built.
    """
    digest = hashlib.sha256(repr(how).encode())
    for file in ("go.mod", "go.sum"):
        digest.update(b"\0" + (folder / file).read_bytes())
    own = (folder / each for each in packages if each.startswith("./"))
    for source in sorted(path for package in own for path in package.rglob("*.go")):
        digest.update(b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def go_build(
    folder: Path,
    packages: Collection[str],
    output: Path,
    *,
    link_flags: Collection[str] = (),
    tags: Collection[str] = (),
    needs_c: bool = False,
) -> None:
    """Build packages that the go.mod in `folder` requires, stripped, into the folder `output`.

    All at once take less time than one after the other. `needs_c`: they link against the C
    library. Raises BuildError with the last lines of the compiler.
    """
    go = go_command(folder / "go.mod", cache_root())
    flags = " ".join(("-s", "-w", *link_flags))
    command = [str(go), "build", "-trimpath", *_COMPILER_FLAGS, "-ldflags", flags]
    if all_tags := [*tags, *(_SAME_LIBRARY if needs_c else ())]:
        command += ["-tags", ",".join(all_tags)]
    environment = {**go_environment(cache_root()), "CGO_ENABLED": "1" if needs_c else "0"}
    done = subprocess.run(
        [*command, "-o", str(output), *packages],
        cwd=folder,
        env={**_heap(), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        text=True,
        errors="replace",
    )
    if done.returncode != 0:
        words = "\n".join(done.stdout.splitlines()[-_LAST_LINES:])
        raise BuildError(f"{', '.join(packages)} did not build:\n{words}")


def program_name(package: str) -> str:
    """Return the name that Go gives to the program of a package: the last part of its path.

    A version such as `v3` is no name; the part before it is.
    """
    *_, before, last = ("", *package.split("/"))
    return before if re.fullmatch(r"v\d+", last) else last


def _heap() -> Mapping[str, str]:
    """Return variables with which compilers collect garbage only if their heap becomes large.

    Nothing on a machine with little memory for each of the compilers that run at a time; a linker
    needs twice as much.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    share = memory // (4 * len(os.sched_getaffinity(0)))
    if share < _LEAST_HEAP:
        return {}
    return {"GOGC": "off", "GOMEMLIMIT": str(min(share, _MOST_HEAP))}
