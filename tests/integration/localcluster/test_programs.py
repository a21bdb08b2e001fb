"""Optional programs are built once by a real Go, and again after a failure."""

import os
from pathlib import Path

import pytest

from localcluster.errors import BuildError
from localcluster.programs import Programs, provide_programs
from localcluster.toolchain import go_command


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "go-build"
    monkeypatch.setenv("GOCACHE", os.environ.get("GOCACHE") or str(default))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "module"
    for name in ("one", "two"):
        (folder / name).mkdir(parents=True)
        (folder / name / "main.go").write_text("package main\n\nfunc main() {}\n")
    (folder / "go.mod").write_text("module m\n\ngo 1.20\n")
    (folder / "go.sum").touch()
    return folder


@pytest.fixture
def _go(module: Path, tmp_path: Path) -> None:
    if go_command(module / "go.mod", tmp_path).is_relative_to(tmp_path):
        pytest.skip("no Go on this machine")


@pytest.mark.usefixtures("_go")
def test_all_programs_of_a_set_are_built_once(module: Path) -> None:
    wanted = Programs("set", module, ("./one", "./two"))
    folder = provide_programs(wanted, print)
    assert sorted(each.name for each in folder.iterdir()) == ["one", "two"]
    assert provide_programs(wanted, pytest.fail) == folder


@pytest.mark.usefixtures("_go")
def test_a_build_that_fails_says_the_compilers_words_and_is_tried_again(module: Path) -> None:
    (module / "one" / "main.go").write_text("package main\n\nfunc main() { nothing() }\n")
    wanted = Programs("set", module, ("./one",))
    with pytest.raises(BuildError, match=r"\./one did not build:\n(.*\n)*.*nothing"):
        provide_programs(wanted, print)
    (module / "one" / "main.go").write_text("package main\n\nfunc main() {}\n")
    assert (provide_programs(wanted, print) / "one").exists()
