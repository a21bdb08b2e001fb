"""`python -m bench.limits` finds what is wrong on a GPU, and says what it cannot try."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from bench.limits import children
from bench.limits.children import Place, child
from bench.limits.table import Verdict
from localcluster import nvml
from localcluster.nvml import CardSpec, write_state
from localcluster.wait import patient

ROOT = Path(__file__).parents[2]
FAKES = ROOT / "tests/fakes/gpu"
CHILD = ROOT / "bench/limits/child.py"
GPU = CardSpec("GPU-a", mem_mib=16276)
NO_PERMISSION = 4
NOT_LOADED = 9
LOST = 15
CANNOT = "driver 580.159.04 cannot limit memory; R615 and newer can"
PYTORCH = ["PyTorch below its share", "PyTorch above its share"]
JAX = ["JAX below its share", "JAX above its share"]
AT_ONCE = ["two processes with PyTorch at once", "two processes with JAX at once"]
CONTEXT = ["CUDA's context with PyTorch", "CUDA's context with JAX"]
MEMORY, SM = "memory of two processes", "SM utilization of two processes"
USE = [MEMORY, SM]
DRIVER, CGROUP = "limits by the driver, GPU 0", "limit of a cgroup is readable"
OK, WRONG, NOT_HERE = Verdict

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run the program on the stand-ins, or other words of Python."""
    smi = tmp_path / "bin/nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKES}/nvidia_smi.py "$@"\n')
    smi.chmod(0o755)

    def run(
        library: Path, *words: str, faults: str = "", version: str = "580.159.04", **spec: object
    ) -> subprocess.CompletedProcess[str]:
        (tmp_path / "cgroup.controllers").touch()
        settings = spec.pop("settings", "")
        code = (
            f"import pathlib, sys, bench.limits.__main__ as m\n"
            f"m.CGROUP = pathlib.Path({str(tmp_path)!r})\n{settings}\nsys.exit(m.main())"
        )
        variables = {key: str(spec.pop(key)) for key in [*spec] if key.isupper()}
        write_state(tmp_path / "state", [spec.pop("gpu", GPU)], version=version, **spec)
        env = {
            **os.environ,
            **nvml.environment(library, tmp_path / "state"),
            "PATH": f"{smi.parent}:{os.environ['PATH']}",
            "PYTHONPATH": f"{FAKES}",
            "GPU_STANDIN_FAULTS": faults,
            **variables,
        }
        argv = [sys.executable, *(words or ("-c", code))]
        return subprocess.run(
            argv,
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=patient(60),
        )

    return run


def verdicts(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Return the table's results by check."""
    assert "Traceback" not in done.stderr, done.stderr
    _, _, table = done.stdout.rpartition("\ncheck ")
    rows = (re.split(r"  +", line, maxsplit=2) for line in table.splitlines()[1:])
    return {check: verdict for check, verdict, _ in rows}


def of(found: Mapping[str, str], verdict: Verdict) -> set[str]:
    return {check for check, each in found.items() if each == verdict}


def test_on_a_driver_that_limits_memory_all_is_right(run: Run, limiting_library: Path) -> None:
    done = run(limiting_library, version="620.70.06")
    found = verdicts(done)
    assert of(found, OK) == {DRIVER, CGROUP, *PYTORCH, *JAX, *AT_ONCE, *CONTEXT, *USE}, done.stdout
    assert len(found) == len(of(found, OK))
    assert done.returncode == 0


def test_an_older_driver_says_that_it_cannot_limit_memory(run: Run, library: Path) -> None:
    done = run(library)
    found = verdicts(done)
    assert (found[DRIVER], of(found, NOT_HERE)) == (OK, {CGROUP})
    assert f"enforces framework; why not more: {CANNOT}" in done.stdout
    assert "'PYTORCH_ALLOC_CONF': 'per_process_memory_fraction:0.1572'" in done.stdout
    assert done.returncode == 0
    for what in ("a limit is enforced", "managed memory escapes", "MIG is refused"):
        assert f"\n- {what}\n" in done.stdout, "what only a newer driver shows is listed"


@pytest.mark.parametrize(
    ("faults", "wrong"),
    [
        ("broken", {*PYTORCH, *JAX, *AT_ONCE, *USE}),
        ("unlimited,context,smi", {PYTORCH[1], JAX[1], *AT_ONCE, *CONTEXT, *USE}),
    ],
)
def test_what_is_wrong_is_told(run: Run, library: Path, faults: str, wrong: set[str]) -> None:
    done = run(library, faults=faults)
    assert of(verdicts(done), WRONG) == wrong, done.stdout
    assert done.returncode == 1


def test_a_newer_driver_that_cannot_limit_memory_is_wrong(run: Run, library: Path) -> None:
    found = verdicts(run(library, version="620.70.06"))
    assert of(found, WRONG) == {DRIVER}


def test_limits_that_cannot_be_read_are_wrong(run: Run, limiting_library: Path) -> None:
    fail = {"nvmlDeviceGetMemoryLimits_v1": NO_PERMISSION}
    found = verdicts(run(limiting_library, version="620.70.06", fail=fail))
    assert of(found, WRONG) == {DRIVER, CGROUP}


def test_without_frameworks_and_libcuda_the_driver_is_judged_alone(run: Run, library: Path) -> None:
    done = run(library, PYTHONPATH="")
    found = verdicts(done)
    assert of(found, NOT_HERE) == found.keys() - {DRIVER}
    assert "No module named 'torch'" in done.stdout
    assert done.returncode == 0


def test_an_older_pytorch_is_not_expected_to_limit_itself(run: Run, library: Path) -> None:
    found = verdicts(run(library, faults="unlimited", GPU_STANDIN_TORCH="2.9.1"))
    assert (found[PYTORCH[0]], found[PYTORCH[1]], found[JAX[1]]) == (OK, NOT_HERE, WRONG)


def test_use_is_not_compared_where_the_driver_tells_no_process(run: Run, library: Path) -> None:
    found = verdicts(run(library, faults="hidden"))
    assert of(found, NOT_HERE) == {CGROUP, *CONTEXT, *USE}


def test_a_gpu_in_mig_mode_is_not_tried(run: Run, limiting_library: Path) -> None:
    done = run(limiting_library, version="620.70.06", gpu=CardSpec("GPU-a", mig=True))
    assert of(verdicts(done), NOT_HERE) == {DRIVER, "shares"}
    assert "the driver limits no memory of a GPU in MIG mode" in done.stdout


def test_a_gpu_that_does_not_answer_is_wrong(run: Run, library: Path) -> None:
    done = run(library, gpu=CardSpec("GPU-a", error=LOST))
    assert of(verdicts(done), WRONG) == {"GPU 0"}


def test_without_a_driver_it_fails_with_what_it_needs(run: Run, library: Path) -> None:
    done = run(library, init=NOT_LOADED)
    assert "This needs a machine with NVIDIA's driver" in done.stdout
    assert (done.returncode, done.stderr) == (1, "")


def test_a_driver_that_does_not_answer_ends_it_with_what_is_known(run: Run, library: Path) -> None:
    hanging = CardSpec("GPU-a", hangs=True)
    done = run(library, settings="m.LONGEST_SECONDS = 0.5", gpu=hanging)
    assert of(verdicts(done), WRONG) == {"end"}
    assert done.returncode == 1


async def test_a_process_that_does_not_answer_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "REPORT_SECONDS", 0.2)
    monkeypatch.setattr(children, "END_SECONDS", 0.2)
    silent = tmp_path / "python"
    silent.write_text("#!/bin/sh\nexec sleep 1000\n")
    silent.chmod(0o755)
    async with child(Place(silent, "GPU-a"), ("torch", "probe", 1, 2), {}) as process:
        report = await process.report()
    assert report.error == "no answer within 0.2 s"
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


@pytest.mark.parametrize(
    ("name", "above"), [("cuda", "CudaError: cuMemAlloc_v2 returned 2"), ("managed", "")]
)
def test_what_is_listed_for_newer_drivers_is_tried_without_a_framework(
    run: Run, library: Path, tmp_path: Path, name: str, above: str
) -> None:
    build = ["cc", "-shared", "-fPIC", "-o", f"{tmp_path}/libcuda.so.1", f"{FAKES}/libcuda.c"]
    subprocess.run(build, check=True)
    path = f"{library}:{tmp_path}"
    words = (str(CHILD), name, "probe", "7168", "8192")
    done = run(library, *words, LD_LIBRARY_PATH=path, GPU_STANDIN_LIMIT_MIB="8192")
    told = json.loads(done.stdout)
    assert (told["version"], told["total_mib"]) == ("CUDA 13.0", 8192)
    assert (told["below"], told["above"]) == ("", above)
