"""Output that cannot be written is a line and an exit code, no stack trace."""

import json
import os
import subprocess
import sys

import msgspec
import pytest

from tests.integration.kube.apiserver import kubeconfig

PICTURE = ("simulate", "--example", "fragmentation", "--last")
LOST = "Error: the output cannot be written: "


def run(*words, streams="", **more):
    """The program as a shell starts it, with ``streams`` behind its words."""
    line = f'exec "$@" {streams}'
    argv = ["sh", "-c", line, "sh", sys.executable, "-m", "gpusharectl", *words]
    env = {**os.environ, "KUBECONFIG": "/nonexistent", **more}
    return subprocess.run(argv, env=env, capture_output=True, check=False)


def test_bars_are_drawn_in_characters_that_the_encoding_has():
    found = run(*PICTURE, PYTHONIOENCODING="latin-1")
    assert (found.returncode, found.stderr) == (0, b"")
    text = found.stdout.decode("latin-1")
    assert "|vllm####" in text
    assert "?" not in text


def test_json_is_utf_8_in_every_locale(tmp_path):
    scene = tmp_path / "scene.yaml"
    scene.write_text("kind: Node\nmetadata: {name: n}\ngpus: 1 x 8 显卡\n", encoding="utf-8")
    found = run("simulate", str(scene), "-o", "json", PYTHONIOENCODING="ascii")
    [card] = json.loads(found.stdout.decode("utf-8"))["steps"][0]["nodes"][0]["cards"]
    assert card["model"] == "显卡"


@pytest.mark.parametrize(
    ("streams", "says"),
    [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")],
)
def test_output_that_is_lost_is_one_line_and_a_code(streams, says):
    found = run("scheduler-config", streams=streams)
    assert (found.returncode, found.stderr.decode()) == (2, f"{LOST}{says}\n")


def test_a_closed_pipe_is_no_error():
    found = run(*PICTURE, streams="| head -1")
    assert (found.stdout.count(b"\n"), found.stderr) == (1, b"")


def test_a_name_that_is_not_text_is_a_usage_error(tmp_path):
    path = tmp_path / "kubeconfig"
    path.write_bytes(msgspec.json.encode(kubeconfig("http://127.0.0.1:1")))
    found = run("explain", b"pod/\xff", KUBECONFIG=str(path))
    assert (found.returncode, found.stderr.count(b"\n")) == (2, 1)
    assert b"'\\udcff' has bytes that are not text" in found.stderr
