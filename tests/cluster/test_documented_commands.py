"""What the documents have people type, typed."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from localcluster.gpushare import ROOT, Gpushare
from localcluster.workloads import Workloads, pod
from tests.markdown import all_commands
from tests.unit.docs.commands import READS

pytestmark = pytest.mark.cluster

READING = sorted(
    {each.text for each in all_commands() if not each.needs and READS.fullmatch(each.text)}
)
PLACES = {
    "NAMESPACE": "default",
    "NAME": "runs",
    "NODE": "n1",
}


def test_commands_of_the_documents_that_only_read_work_as_they_stand(
    gpushare: Gpushare, pods: Workloads, tmp_path: Path
):
    """Of ours 1 says that the answer is no; everything else must succeed."""
    pods.run(pod("runs", 4000))
    pods.create(pod("waits", 20000))
    for name in ("pod.yaml", "new.yaml"):
        (tmp_path / name).write_text(POD)
    (tmp_path / "kubectl").symlink_to(gpushare.cluster.binaries / "kubectl")
    own = Path(sys.executable).parent
    env = {
        **os.environ,
        "PATH": f"{tmp_path}:{own}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "KUBECONFIG": str(gpushare.cluster.kubeconfig),
    }
    ours = f"{sys.executable} -m localcluster \\1 --name {gpushare.cluster.state.name}"

    def typed(text: str) -> str | None:
        """What is wrong with it."""
        line = re.sub(r"uv run --frozen python -m localcluster (\w+)", ours, text)
        for name, value in PLACES.items():
            line = re.sub(rf"\b{name}\b(?!:)", value, line)
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            check=False,
            timeout=120,
        )
        if done.returncode <= ("gpushare" in line.split()[:2]):
            return None
        return f"{line}: {done.returncode}: {(done.stderr or done.stdout).decode()}"

    assert READING
    with ThreadPoolExecutor(4) as pool:
        wrong = [each for each in pool.map(typed, READING) if each is not None]
    assert not wrong, "\n".join(wrong)


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
