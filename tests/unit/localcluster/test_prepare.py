"""What a cluster with gpushare needs is built at the same time."""

import threading
from pathlib import Path

import pytest

from localcluster import prepare as preparing
from localcluster.build import Progress
from localcluster.errors import BuildError
from localcluster.prepare import prepare
from localcluster.wait import patient


@pytest.fixture(autouse=True)
def _root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "check_host", lambda: None)
    monkeypatch.setattr(preparing, "provide_toolkits", lambda *_: None)


def test_the_image_is_built_while_the_programs_are(monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2, timeout=patient(30))

    def image(say: Progress) -> Path:
        both.wait()
        say("image")
        return Path("image.tar")

    def programs(say: Progress, _: object) -> None:
        both.wait()
        say("programs")

    monkeypatch.setattr(preparing, "gpushare_image", image)
    monkeypatch.setattr(preparing, "build", programs)
    said: list[str] = []
    assert prepare(said.append) == Path("image.tar")
    assert sorted(said) == ["image", "programs"]


@pytest.mark.parametrize("failing", ["gpushare_image", "build"])
def test_whatever_does_not_build_is_an_error(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Path:
        raise BuildError(f"{failing} failed")

    for name in ("gpushare_image", "build"):
        monkeypatch.setattr(preparing, name, fails if name == failing else lambda *_: Path())
    with pytest.raises(BuildError, match=f"{failing} failed"):
        prepare(lambda _: None)
