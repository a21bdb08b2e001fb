"""The container runtimes other than containerd 2: when they are built, and their version."""

from pathlib import Path

import pytest

from localcluster.runtimes import containerd_1, provide_runtimes


def test_a_runtime_is_built_only_if_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localcluster.programs._build", lambda _, folder, __: folder.mkdir())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert provide_runtimes({"containerd-2"}, Path("/b"), print) == {"containerd-2": Path("/b")}
    found = provide_runtimes({"containerd-1.7"}, Path("/b"), print)
    assert found["containerd-1.7"].name.startswith("containerd-1.7-")


def test_containerd_1_says_its_own_version() -> None:
    wanted = containerd_1()
    (flag,) = wanted.link_flags
    assert flag.startswith("-X github.com/containerd/containerd/version.Version=v1.7.")
    listed = (wanted.module / "go.mod").read_text()
    assert all(f"\t{each}\n" in listed for each in wanted.packages)
