"""NVIDIA's hook for memory limits, on nodes whose containers run on cgroup v1.

The hook and the driver know only cgroup v2. On a machine that has nothing else, nodes use nothing
of this module: runc runs NVIDIA's hook as it is. On a machine with cgroup v1 and, beside it, the
unified hierarchy at /sys/fs/cgroup/unified, runc keeps every container there, too, under the path
that it has in the other hierarchies. Only the hook looks at /sys/fs/cgroup, so a script in its
place runs it with the unified hierarchy there.

Everything but that view is real: runc, containerd, NVIDIA's CDI file, its unchanged hook, started
by runc with the container's state, and the cgroups. The driver's library is a stand-in on any
machine: it keeps the limits, and a workload has to ask for them.
"""

import shlex
from pathlib import Path
from typing import Final

from localcluster import cgroups

HOOK: Final = "toolkit/nvidia-cdi-hook"
"""The script in the place of NVIDIA's hook, in the folder of a node that needs one."""

# The other hooks change the mount namespace in which they are started.
_SCRIPT: Final = """\
#!/bin/sh
if [ "$1" = apply-cuda-memory-limits ]; then
  export PATH=/usr/sbin:/usr/bin:/sbin:/bin
  exec {unified} "$@"
fi
exec {hook} "$@"
"""


def hook_script(hook: Path) -> str:
    """Return the program that stands in the place of NVIDIA's `hook` and runs it."""
    script = _SCRIPT.replace("{unified}", shlex.join(cgroups.as_unified([str(hook)])))
    return script.replace("{hook}", shlex.quote(str(hook)))
