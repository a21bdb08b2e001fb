"""The commands that a new cluster prints work."""

import shlex
from pathlib import Path

import pytest

from localcluster.__main__ import first_steps
from localcluster.state import DEFAULT_NAME


@pytest.mark.parametrize("name", [DEFAULT_NAME, "another"])
def test_its_programs_and_files_are_there_wherever_it_is_read(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    steps = [shlex.split(each) for each in first_steps(name)]
    files = [words[0] for words in steps] + [words[-1] for words in steps if "-f" in words]
    assert len(files) == 3
    assert [each for each in files if not Path(each).exists()] == []
    assert ("another" in steps[0]) == (name == "another")
