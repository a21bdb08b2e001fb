"""The content of the image, the key of its archive, and which archives are kept."""

import tomllib

import pytest

from localcluster.errors import HostError
from localcluster.imagebuild import KEPT, KEPT_SECONDS, ROOT, content_key, copied, mirror, spent

DOCKERFILE = (ROOT / "Dockerfile").read_text()
TARGETS = """\
http://one.example/debian-security/ bookworm-security main
http://one.example/debian/ bookworm main
http://one.example/debian/ bookworm contrib
http://two.example/debian/ bookworm main
http://three.example/tool/ stable main
"""


def test_everything_that_the_dockerfile_copies_from_its_context_is_there() -> None:
    found = copied(DOCKERFILE)
    assert {"pyproject.toml", "uv.lock", "gpushare", "gpusharectl", "protos"} <= set(found)
    assert [name for name in found if not (ROOT / name).exists()] == []


def test_every_package_of_the_product_is_copied() -> None:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = document["tool"]["importlinter"]["root_packages"]
    assert set(packages) - {"localcluster"} <= set(copied(DOCKERFILE))


def test_a_file_that_is_copied_is_sent_to_the_builder() -> None:
    sent = (ROOT / ".dockerignore").read_text().split()
    assert [name for name in copied(DOCKERFILE) if f"!{name}" not in sent] == []


def test_the_label_says_the_version_where_the_builder_is_told_none() -> None:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert f"ARG VERSION={document['project']['version']}\n" in DOCKERFILE


def test_stages_are_not_taken_for_the_context() -> None:
    text = "COPY --from=build /a /b\nCOPY one two ./\nCOPY three three\n"
    assert copied(text) == ("one", "two", "three")


@pytest.mark.parametrize(
    "other", [{"a": b"1", "b": b"3"}, {"a": b"1"}, {"a": b"1", "c": b"2"}, {"a": b"1b", "": b"2"}]
)
def test_another_name_or_content_is_another_key(other: dict[str, bytes]) -> None:
    files = {"a": b"1", "b": b"2"}
    assert content_key(dict(reversed(files.items()))) == content_key(files)
    assert content_key(other) != content_key(files)


def test_the_newest_are_kept_and_so_is_whatever_was_just_used() -> None:
    now = 10 * KEPT_SECONDS
    old = {f"old{n}": float(n) for n in range(KEPT)}
    assert spent(old, now=now) == []
    assert spent({**old, "newer": KEPT_SECONDS}, now=now) == ["old0"]
    recent = {f"recent{n}": now - n for n in range(2 * KEPT)}
    assert spent(recent, now=now) == []
    assert sorted(spent({**old, **recent}, now=now)) == sorted(old)


def test_the_base_comes_from_where_apt_has_this_machines_own_distribution() -> None:
    found = mirror(TARGETS, "bookworm")
    assert found.address == "http://one.example/debian/"
    assert found.components == ("main", "contrib")


def test_without_an_apt_source_the_error_names_the_fix() -> None:
    with pytest.raises(HostError, match=r"no source for 'noble'.*sources\.list"):
        mirror(TARGETS, "noble")
