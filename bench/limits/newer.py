"""Lists checks for people with a driver R615 or newer: nobody has run them so far."""

from pathlib import Path
from typing import Final

_CHILD: Final = Path(__file__).with_name("child.py")
_GET: Final = (
    'python3 -c "from pynvml import *; nvmlInit(); '
    "l = c_nvmlGetMemoryLimits_v1_t(b'/sys/fs/cgroup/gpushare-check', 0, 0, 0); "
    "nvmlDeviceGetMemoryLimits_v1(nvmlDeviceGetHandleByIndex(0), l); "
    'print(l.softLimit, l.hardLimit, l.currentUsed)"'
)
# What is checked, the command, what it must show.
_CHECKS: Final = (
    (
        "a limit is enforced",
        "inside $G cuda probe 7168 8192",
        'below "", above "CudaError: cuMemAlloc_v2 returned 2"',
    ),
    (
        "allocatable below the limit",
        "(the same)",
        "reached_mib is 8192 less CUDA's context; compare with the row CUDA's context",
    ),
    ("the total is the limit", "(the same)", "total_mib 8192"),
    (
        "managed memory escapes",
        "inside $G managed probe 7168 9216",
        'above "": cudaMallocManaged is not limited; the GPU must have 9216 MiB free',
    ),
    (
        "frameworks see the limit",
        "inside $G torch probe 7168 8192; inside $G jax probe 5120 8192",
        "OutOfMemoryError and RESOURCE_EXHAUSTED above; JAX takes 75 % without the variable",
    ),
    (
        "a soft limit of 0 leaves nothing on parents",
        f"set_limit $G/inner; inside $G/inner cuda probe 1024 2048; rmdir $G/inner; {_GET}",
        "0 8589934592 0: the parent's own limit, and no soft one",
    ),
    (
        "limits are read without capabilities",
        "setpriv --bounding-set=-all --inh-caps=-all python3 -m bench.limits",
        'its row "limit of a cgroup is readable" is ok',
    ),
    (
        "MIG is refused",
        "nvidia-smi -i 0 -mig 1; set_limit $G; python3 -m bench.limits; nvidia-smi -i 0 -mig 0",
        "nvidia-smi memory-limits fails; the row of GPU 0 says that MIG GPUs are not limited",
    ),
)


def text() -> str:
    lines = [
        "To be checked on a driver R615 or newer, as root, in bash, with cgroup v2:",
        "  G=/sys/fs/cgroup/gpushare-check",
        '  set_limit() { mkdir -p "$1" &&',
        '    nvidia-smi memory-limits -i 0 -n "$1" --soft-limit 0 --hard-limit 8192; }',
        '  inside() (echo $BASHPID > "$1/cgroup.procs" && shift &&',
        f'    exec python3 {_CHILD} "$@")',
        "  set_limit $G",
    ]
    for what, command, expected in _CHECKS:
        lines += [f"- {what}", f"  {command}", f"  expected: {expected}"]
    return "\n".join(lines)
