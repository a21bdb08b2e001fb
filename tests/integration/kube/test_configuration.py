"""The cluster is that of a kubeconfig, chosen as kubectl does, or the pod's own."""

from functools import partial

import msgspec
import pytest

from gpushare.errors import SettingsError, Unreachable
from gpushare.kube.client import Kube
from gpushare.kube.connection import access
from tests.fakes.certificates import certificate
from tests.integration.kube.apiserver import kubeconfig

pytestmark = pytest.mark.integration

EXEC = "client.authentication.k8s.io/v1"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Provide a home directory without a kubeconfig, outside of a pod."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "POD_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".kube").mkdir()
    return tmp_path


@pytest.fixture
def in_pod(home, monkeypatch):
    """Provide the files of a pod's ServiceAccount."""
    (home / "token").write_text("of-the-pod\n")
    (home / "namespace").write_text("pods-own")
    certificate(home, "ca")
    monkeypatch.setattr(access, "SERVICE_ACCOUNT", home)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")


def write(path, token, *, namespace="", **user):
    """Return a kubeconfig with a user and a context named after its token."""
    whole = kubeconfig("http://127.0.0.1:1")
    whole["users"] = [{"name": token, "user": user or {"token": token}}]
    context = {"cluster": "c", "user": token, "namespace": namespace}
    whole["contexts"] = [{"name": token, "context": context}]
    whole["current-context"] = token
    path.write_bytes(msgspec.json.encode(whole))
    return str(path)


async def who(kubeconfig=None, **more):
    """Return the Authorization header and the namespace."""
    async with Kube.connect(kubeconfig, **more) as kube:
        return kube.bearer(), kube.namespace


people = partial(who, as_kubectl=True)


async def test_in_a_pod_the_command_line_prefers_the_kubeconfig_and_programs_the_service_account(
    home, in_pod, monkeypatch
):
    assert await people() == ("Bearer of-the-pod", "pods-own")
    write(home / ".kube" / "config", "at-home", namespace="a")
    assert await people() == ("Bearer at-home", "a")
    monkeypatch.setenv("KUBECONFIG", write(home / "named", "in-variable", namespace="b"))
    assert await people() == ("Bearer in-variable", "b")
    flag = write(home / "flag", "by-flag")
    assert await people(flag) == ("Bearer by-flag", "pods-own")  # which is what kubectl does
    assert await people(context="in-variable") == ("Bearer in-variable", "b")
    assert await who() == ("Bearer of-the-pod", "pods-own")
    assert (await who(flag))[0] == "Bearer by-flag"


@pytest.mark.parametrize("content", [None, "", "kind: Config\ncontexts: null\n"])
async def test_an_empty_named_kubeconfig_is_an_error(home, in_pod, monkeypatch, content):
    named = home / "named"
    if content is not None:
        named.write_text(content)
        (home / ".kube" / "config").write_text(content)
    for flag, variable in ((str(named), ""), (None, str(named)), (None, ":")):
        monkeypatch.setenv("KUBECONFIG", variable)
        with pytest.raises(SettingsError, match="name a kubeconfig"):
            await people(flag)
    monkeypatch.setenv("KUBECONFIG", "")
    assert (await people())[0] == "Bearer of-the-pod"
    with pytest.raises(SettingsError):
        await people(context="other")


async def test_of_several_kubeconfigs_the_first_entry_counts_and_paths_are_relative_to_their_file(
    home, monkeypatch
):
    folder = home / "folder"
    folder.mkdir()
    (folder / "secret").write_text("from-file\n")
    first = write(home / "first", "one")
    second = write(folder / "second", "two", tokenFile="secret")
    monkeypatch.setenv("KUBECONFIG", f"/nonexistent:{first}::{second}")
    assert await people() == ("Bearer one", "default")
    assert await people(context="two") == ("Bearer from-file", "default")


async def test_without_a_kubeconfig_outside_a_pod_the_error_says_how_to_name_one(home):
    with pytest.raises(SettingsError, match=r"no kubeconfig in ~/\.kube/config: name a kubeconfig"):
        await people()


@pytest.mark.parametrize(
    ("printed", "says"),
    [
        (None, "'missing-program' failed: it is not installed: run `apt install it`$"),
        ("rubbish", "not an ExecCredential"),
        ("[]", "not an ExecCredential"),
        (f'{{"apiVersion": "{EXEC}", "kind": "ExecCredential", "status": {{}}}}', "missing token"),
        (
            f'{{"apiVersion": "{EXEC}", "kind": "ExecCredential", "status": {{"token": "a\\nb"}}}}',
            "line break",
        ),
    ],
)
async def test_a_failing_credential_plugin_is_named_and_no_request_is_sent(home, printed, says):
    program = (
        {"command": "echo", "args": [printed]}
        if printed
        else {
            "command": "missing-program",
            "installHint": "run `apt install it`",
        }
    )
    path = write(home / "kubeconfig", "u", exec={**program, "apiVersion": EXEC})
    with pytest.raises((SettingsError, Unreachable), match=says):
        await people(path)
