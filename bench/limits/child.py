"""A process that tries how much of a GPU's memory it gets; a child of bench.limits.

    python3 child.py torch|jax|cuda|managed probe BELOW_MIB ABOVE_MIB
    python3 child.py torch|jax|cuda hold MIB BUSY_PERCENT

It prints one line of JSON: ``absent`` says why it cannot try, ``error`` what failed before. A probe
has the errors of the two amounts, each allocated alone (empty if it was), and ``reached_mib`` in
blocks up to the larger one. ``hold`` keeps the memory, and uses the processors for a part of the
time, until its standard input ends. It needs Python 3.10 and no package of gpushare.
"""

import ctypes
import importlib
import json
import os
import select
import signal
import sys
import time
import traceback
from typing import Any

MIB = 2**20
LONGEST_SECONDS = 150  # never outlives its parent for long
PERIOD_SECONDS = 0.1
BLOCKS = 64
LEAST_BLOCK_MIB = 16


class Absent(Exception):
    """What is to be tried is not on this machine."""


class CudaError(Exception):
    """A call of libcuda failed."""


class Torch:
    def __init__(self) -> None:
        self.torch = importlib.import_module("torch")
        self.version = f"PyTorch {self.torch.__version__}"
        if not self.torch.cuda.is_available():
            raise Absent(f"{self.version} sees no GPU")
        self.matrix: Any = None

    def total_mib(self) -> int:
        return int(self.torch.cuda.mem_get_info()[1] // MIB)

    def allocate(self, mib: int) -> Any:
        return self.torch.empty(mib * MIB, dtype=self.torch.uint8, device="cuda")

    def free(self, blocks: list[Any]) -> None:
        blocks.clear()
        self.torch.cuda.empty_cache()

    def taken_mib(self) -> int:
        return int(self.torch.cuda.memory_reserved() // MIB)

    def work(self) -> None:
        if self.matrix is None:
            self.matrix = self.torch.ones(2048, 2048, dtype=self.torch.float16, device="cuda")
        for _ in range(20):
            _ = self.matrix @ self.matrix
        self.torch.cuda.synchronize()


class Jax:
    def __init__(self) -> None:
        self.jax = importlib.import_module("jax")
        self.numpy = importlib.import_module("jax.numpy")
        self.version = f"JAX {self.jax.__version__}"
        try:
            self.device = self.jax.devices("gpu")[0]
        except RuntimeError as err:
            raise Absent(f"{self.version} sees no GPU: {_said(err)}") from err
        self.matrix: Any = None

    def total_mib(self) -> None:
        return None

    def allocate(self, mib: int) -> Any:
        return self.numpy.zeros((mib, MIB // 4), dtype="float32").block_until_ready()

    def free(self, blocks: list[Any]) -> None:
        for block in blocks:
            block.delete()
        blocks.clear()

    def taken_mib(self) -> int:
        stats = self.device.memory_stats()
        return int(stats.get("pool_bytes", stats["bytes_limit"]) // MIB)

    def work(self) -> None:
        if self.matrix is None:
            self.matrix = self.numpy.ones((2048, 2048), dtype="float32")
        (self.matrix @ self.matrix).block_until_ready()


class Cuda:
    """Allocates by the driver's own library, without a framework, and computes nothing."""

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError as err:
            raise Absent(str(err)) from err
        number, context = ctypes.c_int(), ctypes.c_void_p()
        self.ask("cuInit", 0)
        self.ask("cuDriverGetVersion", ctypes.byref(number))
        self.version = f"CUDA {number.value // 1000}.{number.value % 1000 // 10}"
        self.ask("cuDeviceGet", ctypes.byref(number), 0)
        self.ask("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
        self.ask("cuCtxSetCurrent", context)
        self.held_mib = 0

    def ask(self, name: str, *words: object) -> None:
        code = getattr(self.library, name)(*words)
        if code:
            raise CudaError(f"{name} returned {code}")  # 2: out of memory

    def total_mib(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.ask("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return total.value // MIB

    def allocate(self, mib: int) -> Any:
        block = ctypes.c_uint64()
        self.ask("cuMemAlloc_v2", ctypes.byref(block), ctypes.c_size_t(mib * MIB))
        self.held_mib += mib
        return block

    def free(self, blocks: list[Any]) -> None:
        for block in blocks:
            self.ask("cuMemFree_v2", block)
        blocks.clear()
        self.held_mib = 0

    def taken_mib(self) -> int:
        return self.held_mib

    def work(self) -> None:
        pass


class Managed(Cuda):
    """The same with memory that may move to the machine's; never ask for more than is free."""

    def allocate(self, mib: int) -> Any:
        block, size = ctypes.c_uint64(), ctypes.c_size_t(mib * MIB)
        self.ask("cuMemAllocManaged", ctypes.byref(block), size, 1)
        self.ask("cuMemsetD8_v2", block, 1, size)
        self.ask("cuCtxSynchronize")
        return block


PROGRAMS = {"torch": Torch, "jax": Jax, "cuda": Cuda, "managed": Managed}


def main() -> int:
    name, role, *amounts = sys.argv[1:]
    signal.alarm(LONGEST_SECONDS)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries may print
    program: Any = None
    blocks: list[Any] = []
    try:
        program = PROGRAMS[name]()
        found: dict[str, Any] = {"version": program.version, "total_mib": program.total_mib()}
        if role == "probe":
            found.update(probe(program, *map(int, amounts)))
        else:
            blocks.append(program.allocate(int(amounts[0])))
            program.work()  # loads what real programs load
            found["taken_mib"] = program.taken_mib()
    except Absent as err:
        found = {"absent": str(err)}
    except ModuleNotFoundError as err:
        is_absent = err.name == name
        found = {"absent" if is_absent else "error": f"{err} in {sys.executable}"}
    except Exception as err:  # noqa: BLE001 - whatever a framework raises is what was seen
        found = {"error": _said(err)}
        traceback.print_exc()
    print(json.dumps(found), file=out, flush=True)
    if blocks:
        be_busy(program, int(amounts[1]) / 100)
    return 0


def probe(program: Any, below_mib: int, above_mib: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, mib in (("below", below_mib), ("above", above_mib)):
        found[key] = ""
        try:
            program.free([program.allocate(mib)])
        except Exception as err:  # noqa: BLE001
            found[key] = _said(err)
    blocks: list[Any] = []
    step_mib = max(LEAST_BLOCK_MIB, above_mib // BLOCKS)
    try:
        while len(blocks) * step_mib < above_mib:
            blocks.append(program.allocate(step_mib))
    except Exception as err:  # noqa: BLE001
        found["stopped_by"] = _said(err)
    found["reached_mib"] = len(blocks) * step_mib
    return found


def be_busy(program: Any, part: float) -> None:
    while not select.select([sys.stdin], [], [], PERIOD_SECONDS * (1 - part))[0]:
        until = time.monotonic() + PERIOD_SECONDS * part
        while time.monotonic() < until:
            program.work()


def _said(err: Exception) -> str:
    return f"{type(err).__name__}: {err}".split("\n", 1)[0][:300]


if __name__ == "__main__":
    sys.exit(main())
