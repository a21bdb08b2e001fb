"""Run the command line on a real cluster as a user would, with only that user's rights."""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from localcluster.cluster import Cluster
from localcluster.errors import CommandError
from localcluster.wait import wait_until
from tests.unit.gpusharectl.test_program import HOOK

ROOT: Final = Path(__file__).parents[2]
READER: Final = "default:reads"
PROGRAM: Final = (sys.executable, "-m", "gpusharectl")
# A shell starts what runs in its background with SIGINT ignored, and so may have started the tests.
ENDS_BY_SIGINT: Final = ("env", "--default-signal=INT")


class CommandLine:
    """Run commands with one kubeconfig, without the libraries of extender and plugin."""

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        (folder / "sitecustomize.py").write_text(HOOK)
        path = f"{folder}:{ROOT}"
        self.env = {**os.environ, "KUBECONFIG": str(kubeconfig), "PYTHONPATH": path}

    def run(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PROGRAM, *words],
            env=self.env, input=stdin, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def says(self, *words: str, code: int = 0, stdin: str = "") -> str:
        """Return what a command prints that ends with this code."""
        found = self.run(*words, stdin=stdin)
        assert found.returncode == code, found.stdout + found.stderr
        return found.stdout or found.stderr

    def tells(self, *words: str, code: int = 0, stdin: str = "") -> dict[str, Any]:
        """Return the JSON that a command prints."""
        found: dict[str, Any] = json.loads(self.says(*words, "-o", "json", code=code, stdin=stdin))
        return found


def _lacks(cluster: Cluster, role: dict[str, Any]) -> str | None:
    rule = role["rules"][-1]
    what = f"{rule['resources'][-1]}.{rule['apiGroups'][-1]}".rstrip(".")
    where = role["metadata"].get("namespace", "default")
    return why_not(cluster, READER, rule["verbs"][-1], what, where)


def why_not(cluster: Cluster, account: str, verb: str, what: str, namespace: str) -> str | None:
    """Return why an account (namespace:name) may not do this; None if it may.

    The API server learns of a role and its binding by a watch.
    """
    words = (verb, what, "-n", namespace, "--as", f"system:serviceaccount:{account}")
    try:
        cluster.kubectl("auth", "can-i", *words)
    except CommandError as refused:
        return str(refused)
    return None


@contextlib.contextmanager
def reader(cluster: Cluster, folder: Path, *names: str) -> Iterator[CommandLine]:
    """Give a command line that has only these roles of docs/reference/command-line.md."""
    text = (ROOT / "docs/reference/command-line.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    documents = [each for block in blocks for each in yaml.safe_load_all(block)]
    roles = [each for each in documents if each["metadata"]["name"] in names]
    assert {each["metadata"]["name"] for each in roles} == set(names)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reads"}}
    bindings = [
        {
            "apiVersion": each["apiVersion"],
            "kind": f"{each['kind']}Binding",
            "metadata": each["metadata"],
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": each["kind"],
                "name": each["metadata"]["name"],
            },
            "subjects": [{"kind": "ServiceAccount", "name": "reads", "namespace": "default"}],
        }
        for each in roles
    ]
    manifest = yaml.safe_dump_all([account, *roles, *bindings])
    cluster.kubectl("apply", "-f", "-", stdin=manifest)
    for role in roles:
        wait_until("the rights to hold", lambda role=role: _lacks(cluster, role), seconds=60)
    try:
        yield CommandLine(cluster.service_account_kubeconfig("default", "reads"), folder)
    finally:
        cluster.kubectl("delete", "-f", "-", stdin=manifest)
