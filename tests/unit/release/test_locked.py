"""Only what a hash identifies builds the image and runs in checks."""

import re
import subprocess
import sys
from pathlib import Path

import yaml

from localcluster.imagebuild import ROOT
from release import locked

TOOLS = ("uv", "hatchling")


def test_tools_are_required_with_what_they_need_each_by_version_and_hash() -> None:
    words = [sys.executable, locked.__file__, str(ROOT / "uv.lock"), *TOOLS]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    named = [re.fullmatch(r"([\w-]+)==[\w.]+( --hash=sha256:[0-9a-f]{64})+", each) for each in told]
    assert {*TOOLS, "pathspec"} <= {each[1] for each in named if each}
    assert None not in named


def test_pip_installs_nothing_without_a_hash() -> None:
    for name in ("Dockerfile", "Makefile"):
        text = (ROOT / name).read_text()
        found = re.findall(r"pip install[^\n]*", text.replace("uv pip install", ""))
        assert found, name
        assert all("--require-hashes" in each for each in found), (name, found)


def test_actions_are_named_by_commit_with_their_version() -> None:
    for path in sorted(Path(ROOT / ".github" / "workflows").glob("*.yaml")):
        text = path.read_text()
        lines = re.findall(r"uses: *(.*)", text)
        steps = [step for job in yaml.safe_load(text)["jobs"].values() for step in job["steps"]]
        assert len(lines) == sum("uses" in step for step in steps)
        for line in lines:
            assert re.fullmatch(r"[\w-]+/[\w./-]+@[0-9a-f]{40} # v[0-9.]+", line), line
