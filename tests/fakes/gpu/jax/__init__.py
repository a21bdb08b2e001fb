"""A stand-in for JAX that limits itself as JAX does."""

import os
from types import SimpleNamespace

from standin_memory import MIB, TOTAL_MIB, Pool

__version__ = "0.11.2"
part = float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.75"))


class JaxRuntimeError(RuntimeError):
    pass


pool = Pool(TOTAL_MIB * part, lambda: JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"))


def devices(_: str) -> list[SimpleNamespace]:
    limit = {"bytes_limit": int(TOTAL_MIB * part) * MIB, "pool_bytes": pool.used_mib * MIB}
    return [SimpleNamespace(memory_stats=lambda: limit | {"pool_bytes": pool.used_mib * MIB})]
