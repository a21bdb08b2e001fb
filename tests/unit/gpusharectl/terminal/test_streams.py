"""Streams that are closed, full or of another encoding are a line and a code, no stack trace."""

import json
import os
import subprocess
import sys

import msgspec
import pytest

from tests.integration.kube.apiserver import kubeconfig
from tests.unit.gpusharectl.test_program import ROOT

# As if nobody knew the user who runs it.
NOBODY = """\
import pwd

def getpwuid(uid):
    raise KeyError(uid)

pwd.getpwuid = getpwuid
"""
PICTURE = ("simulate", "--example", "fragmentation", "--last")
LOST = "Error: the output cannot be written: "


def run(*words, streams="", **more):
    """The program as a shell starts it, with ``streams`` behind its words."""
    line = f'exec "$@" {streams}'
    argv = ["sh", "-c", line, "sh", sys.executable, "-m", "gpusharectl", *words]
    env = {**os.environ, "KUBECONFIG": "/nonexistent", **more}
    return subprocess.run(argv, env=env, capture_output=True, check=False, timeout=60)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_picture_is_drawn_in_signs_that_the_encoding_has(encoding):
    found = run(*PICTURE, PYTHONIOENCODING=encoding)
    assert (found.returncode, found.stderr) == (0, b"")
    text = found.stdout.decode(encoding)
    assert "|large####" in text
    assert "?" not in text


def test_what_programs_read_is_utf_8_whatever_people_read(tmp_path):
    scene = tmp_path / "scene.yaml"
    scene.write_text("kind: Node\nmetadata: {name: n}\ncards: 1 x 8 显卡\n", encoding="utf-8")
    found = run("simulate", str(scene), "-o", "json", PYTHONIOENCODING="ascii")
    [card] = json.loads(found.stdout.decode("utf-8"))["steps"][0]["nodes"][0]["cards"]
    assert card["model"] == "显卡"


@pytest.mark.parametrize(
    ("words", "streams", "says", "unbuffered"),
    [
        (PICTURE, ">/dev/full", "No space left on device", ""),
        ((*PICTURE, "-o", "json"), ">/dev/full", "No space left on device", "1"),
        (("scheduler-config",), ">/dev/full", "No space left on device", ""),
        (("scheduler-config",), ">&-", "Bad file descriptor", ""),
    ],
)
def test_output_that_is_lost_is_one_line_and_a_code(words, streams, says, unbuffered):
    found = run(*words, streams=streams, PYTHONUNBUFFERED=unbuffered)
    assert (found.returncode, found.stderr.decode()) == (2, f"{LOST}{says}\n")


def test_a_reader_that_has_enough_is_no_error():
    found = run(*PICTURE, streams="| head -1")
    assert (found.stdout.count(b"\n"), found.stderr) == (1, b"")


@pytest.mark.parametrize(
    ("words", "code"), [(("inspect",), 2), (("simulate", "-"), 2), (("completion", "bash"), 0)]
)
def test_closed_input_and_errors_are_borne(words, code):
    found = run(*words, streams="<&- 2>&-")
    assert (found.returncode, found.stderr) == (code, b"")


@pytest.mark.parametrize("columns", ["0", "\u00b2", "1" * 12])
def test_a_width_that_is_none_hides_nothing(columns):
    found = run(*PICTURE, COLUMNS=columns, LINES=columns)
    assert (found.returncode, found.stderr) == (0, b"")
    assert f"▕large{30 * '█'}".encode() in found.stdout


def test_a_name_that_is_no_text_is_a_usage_error(tmp_path):
    path = tmp_path / "kubeconfig"
    path.write_bytes(msgspec.json.encode(kubeconfig("http://127.0.0.1:1")))
    found = run("explain", b"pod/\xff", KUBECONFIG=str(path))
    assert (found.returncode, found.stderr.count(b"\n")) == (2, 1)
    assert b"'\\udcff' has bytes that are no text" in found.stderr


def test_without_a_home_a_program_says_what_it_lacks(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(NOBODY)
    argv = ["env", "-u", "HOME", "-u", "KUBECONFIG", sys.executable, "-m", "gpusharectl", "top"]
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    found = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert found.returncode == 2
    assert found.stderr.startswith(
        "Error: there is no kubeconfig in ~/.kube/config: name a kubeconfig"
    )
