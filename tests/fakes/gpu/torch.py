"""A stand-in for PyTorch that limits itself as PyTorch does."""

import os
from types import SimpleNamespace

from standin_memory import MIB, TOTAL_MIB, Pool, work

__version__ = os.environ.get("GPU_STANDIN_TORCH", "2.11.0+cu130")
uint8 = float16 = ""


class OutOfMemoryError(RuntimeError):
    pass


class Matrix:
    def __matmul__(self, other: "Matrix") -> "Matrix":
        return other


def ones(*shape: int, **_: object) -> Matrix:
    return Matrix()


def empty(size: int, **_: object) -> object:
    return pool.allocate(size // MIB)


_, _, part = os.environ.get("PYTORCH_ALLOC_CONF", "").partition("per_process_memory_fraction:")
pool = Pool(TOTAL_MIB * float(part or 1), lambda: OutOfMemoryError("CUDA out of memory."))
cuda = SimpleNamespace(
    is_available=lambda: True,
    mem_get_info=lambda: (0, TOTAL_MIB * MIB),
    memory_reserved=lambda: pool.used_mib * MIB,
    empty_cache=pool.free,
    synchronize=lambda: work(pool.used_mib),
)
