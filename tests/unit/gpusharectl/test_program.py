"""The program as it is started: without either half's libraries, as a plugin, in a shell."""

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from gpusharectl import version
from gpusharectl.app import COMMANDS, cli, imported
from gpusharectl.explain.lines import Explained, Running
from gpusharectl.gangs.lines import Gangs
from gpusharectl.inspect.namespaces import NamespaceUse
from gpusharectl.inspect.summary import LargestFree, Overview, PodPlace, Summary
from gpusharectl.inspect.waiting import WaitingPod

ROOT = Path(__file__).parents[3]
REFUSED = ("grpc", "pynvml", "prometheus_client", "cryptography", "google.protobuf")
# As if only the command line were installed.
HOOK = f"""\
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.startswith({REFUSED!r}):
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Refuse())
"""


def run(folder, *words, name="gpushare", **more):
    """Run a program of ours with nothing but what the core needs."""
    starts = more.pop("starts", "__main__ import main")
    code = f"import sys; sys.argv[0] = {name!r}; from gpusharectl.{starts} as go; go()"
    return python(folder, "-c", code, *words, **more)


def python(folder, *words, **more):
    (folder / "sitecustomize.py").write_text(HOOK)
    env = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}", **more}
    argv = [sys.executable, *words]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_has_the_first_sentence_of_each(name):
    assert COMMANDS[name][1] == imported(name).help.partition("\n")[0]


def test_help_lists_every_command_and_imports_none(tmp_path):
    starts = "app import COMMANDS; import atexit; atexit.register(lambda: print(*sys.modules))"
    found = run(tmp_path, "--help", starts=f"{starts}; from gpusharectl.__main__ import main")
    assert (found.returncode, found.stderr) == (0, "")
    shown, _, modules = found.stdout.rstrip().rpartition("\n")
    assert {name for name in COMMANDS if f"\n  {name} " not in shown} == set()
    assert [line for line in shown.splitlines() if re.match("  .*\\.\\.\\.$", line)] == []
    slow = {"aiohttp", "asyncio", "importlib.metadata", "msgspec", "rich", "ssl", "yaml"}
    assert set(modules.split()) & slow == set()


def test_no_command_needs_the_libraries_of_either_half(tmp_path):
    every = "app import COMMANDS, imported; [imported(name) for name in COMMANDS]"
    found = run(tmp_path, "--help", starts=f"{every}; from gpusharectl.__main__ import main")
    assert (found.returncode, found.stderr) == (0, "")
    starts = "reach.port_forward import asyncio; import grpc; from os import getpid"
    refused = run(tmp_path, starts=starts)
    assert "ModuleNotFoundError: grpc" in refused.stderr


@pytest.mark.parametrize("half", ["extender", "deviceplugin"])
def test_a_half_without_its_libraries_says_what_brings_them(tmp_path, half):
    found = python(tmp_path, "-m", half, "--node-name=n")
    assert "is not installed: run `make setup`, or use the image" in found.stderr
    assert (found.returncode, "Traceback" in found.stderr) == (1, False)


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_the_device_plugin_shows_its_flags_without_its_libraries(tmp_path, flag):
    found = python(tmp_path, "-m", "deviceplugin", flag)
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize(
    "kind",
    [
        Overview,
        Summary,
        LargestFree,
        PodPlace,
        NamespaceUse,
        WaitingPod,
        Explained,
        Gangs,
        Running,
        version.Versions,
        version.Running,
    ],
)
def test_what_programs_read_is_documented(kind):
    text = (ROOT / "docs/reference/command-line.md").read_text()
    names = {each.encode_name for each in msgspec.structs.fields(kind)}
    assert {name for name in names if f"`{name}`" not in text} == set()


def test_output_means_the_same_in_every_command():
    found = {}
    for name in COMMANDS:
        for param in cli.get_command(None, name).params:
            if param.name == "output":
                found[name] = (param.opts, set(param.type.choices), param.default)
    both = ["-o", "--output"]
    more = {"inspect": {"wide"}, "gangs": {"wide"}, "queue": {"wide"}}
    names = (
        "inspect",
        "explain",
        "what-if",
        "gangs",
        "queue",
        "quota",
        "doctor",
        "top",
        "defragment",
    )
    names += ("top", "simulate", "migrate", "version")
    forms = {"text", "json", "yaml"}
    assert found == {name: (both, forms | more.get(name, set()), "text") for name in names}


@pytest.mark.parametrize(
    ("words", "used"),
    [
        (["--kubeconfig", "/before", "inspect"], "/before"),
        (["inspect", "--kubeconfig", "/after"], "/after"),
        (["--kubeconfig", "/before", "inspect", "--kubeconfig", "/after"], "/after"),
    ],
)
def test_an_option_before_the_command_counts_unless_it_also_follows(words, used):
    found = CliRunner().invoke(cli, words)
    assert f"there is no file {used}: name a kubeconfig" in found.output


@pytest.mark.parametrize("words", [["completion", "bash"], ["simulate", "--list-examples"]])
def test_a_command_without_a_cluster_ignores_which_one_is_chosen(words):
    plain, chosen = (CliRunner().invoke(cli, [*more, *words]) for more in ([], ["--context", "x"]))
    assert (chosen.exit_code, chosen.output) == (0, plain.output)


@pytest.mark.parametrize("url", ["127.0.0.1:29766", "ftp://x", "https://", "http://a:99999"])
def test_an_invalid_variable_is_named(url):
    found = CliRunner().invoke(cli, ["inspect"], env={"GPUSHARE_SERVER": url})
    assert (found.exit_code, "(env var: 'GPUSHARE_SERVER')" in found.output) == (2, True)


def test_empty_and_superfluous_variables_are_ignored(tmp_path):
    env = {"GPUSHARE_SERVER": "", "GPUSHARE_SERVER_CA": "/nonexistent"}
    for more in ([], ["--server", "http://127.0.0.1:1"]):
        words = ["inspect", "--kubeconfig", str(tmp_path / "missing"), *more]
        found = CliRunner().invoke(cli, words, env=env)
        assert "Error: there is no file" in found.output


def test_the_own_version_needs_no_cluster():
    found = CliRunner().invoke(cli, ["version", "--client", "-o", "json"])
    assert found.exit_code == 0
    assert msgspec.json.decode(found.output) == {
        "client": metadata.version("gpushare"), "extenders": None, "plugins": None, "notShown": []
    }  # fmt: skip


@pytest.mark.parametrize("name", ["", "..", "a/b", "A", "x" * 64, "kube-system?x"])
def test_what_is_no_name_of_a_namespace_is_put_in_no_path(name):
    for command in ("uninstall", "inspect"):
        found = CliRunner().invoke(cli, [command, "--system-namespace", name])
        assert found.exit_code == 2
        assert "is not a namespace name" in found.output


def test_as_kubectls_plugin_it_calls_itself_so(tmp_path):
    found = run(tmp_path, "--help", name="/usr/bin/kubectl-gpushare")
    assert found.stdout.startswith("Usage: kubectl gpushare")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shells_script_asks_this_program_for_words(shell):
    found = CliRunner().invoke(cli, ["completion", shell])
    assert (found.exit_code, "_GPUSHARE_COMPLETE" in found.output) == (0, True)


def test_a_shell_is_told_commands_and_nothing_where_no_cluster_answers(tmp_path):
    def words(line, place):
        asked = {"_GPUSHARE_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": place}
        return run(tmp_path, **asked, KUBECONFIG=str(tmp_path / "none"))

    assert words("gpushare in", "1").stdout == "plain,inspect\n"
    assert words("gpushare simulate --example f", "3").stdout.split() == [
        "plain,filter",
        "plain,fragmentation",
    ]
    silent = words("gpushare inspect ", "2")
    assert (silent.returncode, silent.stdout.strip(), silent.stderr) == (0, "", "")


def test_kubectl_is_told_in_its_own_form(tmp_path):
    found = run(tmp_path, "wh", starts="completion import kubectl")
    assert found.stdout.splitlines() == ["what-if\tCheck whether a pod would fit now.", ":4"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["inspect", "--kubeconfig", "/nonexistent"], 2, "there is no file /nonexistent"),
        (["what-if", "-f", "/nonexistent"], 2, "No such file"),
        (["explain", "a", "b"], 2, "is not a pod"),
        (["explain", "service/x"], 2, "is not a pod"),
        (["inspect", "--server-ca", "x"], 2, "only with --server https://"),
        (["inspect", "--server-ca", "x", "--server", "http://a:1"], 2, "only with --server https"),
        (["uninstall", "--drain-seconds", "5"], 2, "only with --drain"),
        (["uninstall", "--drain", "--drain-seconds", "nan"], 2, "not a valid integer"),
        (["nonsense"], 2, "No such command"),
        (["simlate"], 2, "Did you mean 'simulate'?"),
        (["simulate", "--example", "filtr"], 2, "did you mean filter?"),
        (["-n", "ml", "top"], 2, "--namespace does not apply to top"),
        (["-n", "a/b", "inspect"], 2, "is not a namespace name"),
        (["inspect", "--server", "http://[::1"], 2, "write http://HOST:PORT or https://HOST:PORT"),
    ],
)
def test_what_cannot_be_done_is_an_error_of_one_line_and_a_code(words, code, says):
    found = CliRunner().invoke(cli, words)
    assert (found.exit_code, says in found.output) == (code, True), found.output
    assert "Traceback" not in found.output
