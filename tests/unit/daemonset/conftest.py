"""Render kustomizations with kubectl, as a user would."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.daemonset.kustomizations import COMPONENTS, ROOT, own


class Objects:
    """The objects that a kustomization renders."""

    def __init__(self, documents: list[dict[str, Any]]) -> None:
        self.all = documents

    def one(self, kind: str, name: str = "") -> dict[str, Any]:
        (found,) = [
            each
            for each in self.all
            if each["kind"] == kind and name in ("", each["metadata"]["name"])
        ]
        return found

    def kinds(self) -> set[str]:
        return {each["kind"] for each in self.all}

    def workloads(self) -> list[dict[str, Any]]:
        return [each for each in self.all if each["kind"] in {"DaemonSet", "Deployment"}]

    def workload(self, container: str) -> dict[str, Any]:
        """Return the workload whose pods have a container of this name."""
        (found,) = [
            each
            for each in self.workloads()
            for one in each["spec"]["template"]["spec"]["containers"]
            if one["name"] == container
        ]
        return found

    def pod(self, container: str) -> dict[str, Any]:
        return self.workload(container)["spec"]["template"]["spec"]

    def container(self, name: str) -> dict[str, Any]:
        (container,) = [each for each in self.pod(name)["containers"] if each["name"] == name]
        return container


@cache
def _kubectl() -> str | None:
    cached = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    built = sorted(cached.glob("gpushare/localcluster/*/bin/kubectl"))
    return str(built[-1]) if built else shutil.which("kubectl")


@cache
def _render(folder: str) -> list[dict[str, Any]]:
    kubectl = _kubectl()
    if kubectl is None:
        pytest.skip("kubectl renders kustomizations: put one on PATH, or run `make cluster` once")
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return list(yaml.safe_load_all(done.stdout))


@cache
def _render_own(text: str, *files: tuple[str, str]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "daemonset").symlink_to(ROOT / "daemonset")
        folder = Path(place) / "my-cluster"
        folder.mkdir()
        for name, content in (("kustomization.yaml", text), *files):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(content)
        return _render(str(folder))


@pytest.fixture
def render():
    """Give a function that renders a folder of the repository; a component with the base."""

    def rendered(folder: str) -> Objects:
        if folder in COMPONENTS:
            return Objects(_render_own(own(Path(folder).name)))
        return Objects(_render(str(ROOT / folder)))

    return rendered


@pytest.fixture
def render_own():
    """Give a function that renders a kustomization in the folder my-cluster of a checkout."""

    def rendered(text: str, files: Mapping[str, str] | None = None) -> Objects:
        return Objects(_render_own(text, *(files or {}).items()))

    return rendered
