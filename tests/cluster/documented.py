"""Run the commands of the documents on a cluster where gpushare runs from its image."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from localcluster import namespaces
from localcluster.gpushare import ROOT, Gpushare
from tests.markdown import all_commands
from tests.unit.docs.commands import READS

# Those of docs/kind.md are run in their order by test_kind.py.
READING = sorted(
    {
        each.text
        for each in all_commands()
        if not each.needs and READS.fullmatch(each.text) and "docs/kind.md" not in each.place
    }
)
PLACES = {"NAMESPACE": "default", "NAME": "runs", "NODE": "n1"}
POD = """
apiVersion: v1
kind: Pod
metadata: {name: another}
spec:
  containers:
    - name: main
      image: none
      resources: {limits: {aliyun.com/gpu-mem: 4000}}
"""


def problems(gpushare: Gpushare, commands: Iterable[str], folder: Path) -> list[str]:
    """Run commands unchanged in a folder; return those that failed.

    A command that prints nothing has failed too. Exit code 1 of gpushare is an answer.
    """
    cluster = gpushare.cluster
    for name in ("pod.yaml", "new.yaml"):
        (folder / name).write_text(POD)
    (folder / "kubectl").symlink_to(cluster.binaries / "kubectl")
    own = Path(sys.executable).parent
    env = {
        **os.environ,
        "PATH": f"{folder}:{own}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "KUBECONFIG": str(cluster.kubeconfig),
    }
    _, network = namespaces.pins(cluster.state, str(cluster.control_plane))

    def problem(text: str) -> str | None:
        line = re.sub(r"(-m localcluster \w+)", rf"\1 --name {cluster.state.name}", text)
        line = line.replace(".venv/bin/", f"{own}/")
        for name, value in PLACES.items():
            line = re.sub(rf"\b{name}\b(?!:)", value, line)
        # The extender listens on the loopback of kube-scheduler's node.
        there = ["nsenter", f"--net={network}", "--"] if "127.0.0.1" in line else []
        done = subprocess.run(
            [*there, "bash", "-o", "pipefail", "-c", line],
            env=env,
            cwd=folder,
            capture_output=True,
            check=False,
        )
        is_ours = any(Path(word).name == "gpushare" for word in line.split()[:2])
        if done.returncode <= is_ours and done.stdout.strip():
            return None
        return f"{line}: {done.returncode}: {(done.stderr or done.stdout).decode()}"

    with ThreadPoolExecutor(4) as pool:
        return [each for each in pool.map(problem, commands) if each is not None]
