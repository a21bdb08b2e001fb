"""What tests need is prepared before them, and nothing that fails is hidden."""

import threading
from pathlib import Path

import pytest

from localcluster.build import Progress
from localcluster.errors import BuildError, HostError
from localcluster.wait import patient
from tests import needs


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def there(_: Progress) -> Path:
    return Path()


def broken(_: Progress) -> Path:
    raise BuildError("no such module")


def refused(_: Progress) -> Path:
    raise HostError("this machine lacks npm")


def test_a_failure_is_named_and_all_else_is_prepared(capsys: pytest.CaptureFixture[str]) -> None:
    built = []

    def builds(say: Progress) -> Path:
        built.append(say)
        return Path()

    said = needs.main({"kueue": broken, "helm": builds}, {"axe": builds})
    assert said == "tests cannot run without: kueue; the reasons are above"
    assert len(built) == 2
    assert "kueue: FAILED: no such module" in capsys.readouterr().out


def test_lanes_run_beside_each_other() -> None:
    both = threading.Barrier(2, timeout=patient(30))

    def meets(_: Progress) -> Path:
        both.wait()
        return Path()

    assert needs.main({"helm": meets}, {"axe": meets}) is None


def test_nothing_is_said_of_what_is_there_already() -> None:
    said: list[str] = []
    assert needs.prepare({"helm": there}, said.append) == []
    assert said == []


@pytest.mark.parametrize("can_install", [True, False])
def test_what_a_machine_cannot_have_fails_only_where_it_could_be_installed(
    can_install: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needs, "may_install", lambda: can_install)
    said: list[str] = []
    assert needs.prepare({"axe": refused}, said.append) == (["axe"] if can_install else [])
    (line,) = said
    assert "this machine lacks npm" in line
    assert ("skipped" in line) is not can_install
