"""The builder that ``make image`` chooses, and its arguments."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from localcluster.imagebuild import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make: install it")
BUILDERS = ("docker", "podman", "buildah")


def said(folder: Path, *working: str, words: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
    """Return what would run where only these of the installed builders work."""
    for name in BUILDERS:
        builder = folder / name
        builder.write_text(f"#!/bin/sh\nexit {0 if name in working else 1}\n")
        builder.chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    argv = ["make", "-n", "--no-print-directory", "image", *words]
    return subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("working", "taken"),
    [(BUILDERS, "docker"), (("podman", "buildah"), "podman"), (("buildah",), "buildah")],
)
def test_the_first_working_builder_runs(
    tmp_path: Path, working: tuple[str, ...], taken: str
) -> None:
    assert f"\n{taken} build " in said(tmp_path, *working).stdout


@pytest.mark.parametrize("word", ["BUILDER=podman", "DOCKER=podman"])
def test_another_builder_and_base_can_be_named(tmp_path: Path, word: str) -> None:
    text = said(tmp_path, *BUILDERS, words=(word, "BASE_IMAGE=example/python:3")).stdout
    assert "\npodman build " in text
    assert "--build-arg BASE_IMAGE=example/python:3" in text
    assert "--isolation" not in text


def test_a_base_is_pinned_by_its_digest_and_a_time_becomes_a_label(tmp_path: Path) -> None:
    plain = said(tmp_path, *BUILDERS).stdout
    assert "digest" not in plain
    assert "created" not in plain
    words = ("BASE_DIGEST=sha256:12ab", "CREATED=2026-01-31T12:00:00Z")
    text = said(tmp_path, *BUILDERS, words=words).stdout
    assert "--build-arg BASE_DIGEST=sha256:12ab" in text
    assert "--label org.opencontainers.image.base.digest=sha256:12ab" in text
    assert "--label org.opencontainers.image.created=2026-01-31T12:00:00Z" in text


def test_where_none_works_it_says_what_to_install(tmp_path: Path) -> None:
    assert 'test -n "" || ' in said(tmp_path).stdout
    assert "no docker, podman or buildah here works: install one" in said(tmp_path).stdout
