"""``gpushare scheduler-config``: shipped files are what it prints; what it merges and refuses."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from gpusharectl.app import cli
from gpusharectl.certificates import files as certificates
from gpusharectl.scheduler_config import rules
from tests.markdown import all_commands, documents, prose

ROOT = Path(__file__).parents[4]
MEMORY = {"name": "aliyun.com/gpu-mem", "ignoredByScheduler": False}
TLS = ("--authority=/etc/ca.crt", "--certificate=/etc/tls.crt", "--key=/etc/tls.key")


def asked(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["scheduler-config", *arguments], input=text)


def printed(*arguments: str, text: str | None = None) -> str:
    result = asked(*arguments, text=text)
    assert result.exit_code == 0, result.output
    return result.stdout


def there(**rest: Any) -> dict[str, Any]:
    version, kind = rules._KIND
    return {"apiVersion": version, "kind": kind, **rest}


def merged(document: Any) -> tuple[dict[str, Any], list[str]]:
    result = asked("--merge", "-", text=yaml.safe_dump(document))
    assert result.exit_code == 0, result.output
    return yaml.safe_load(result.stdout), result.stderr.splitlines()


@pytest.mark.parametrize(
    ("arguments", "file"),
    [
        ((), "daemonset/scheduler/config.yaml"),
        (("--control-plane",), "daemonset/scheduler/config.yaml"),
        (("--second-scheduler",), "daemonset/overlays/second-scheduler/config.yaml"),
        (("--kubeadm",), "daemonset/scheduler/kubeadm.yaml"),
    ],
)
def test_what_is_shipped_is_what_is_printed(arguments, file):
    assert printed(*arguments) == (ROOT / file).read_text()


def shown() -> list[list[str]]:
    """Every call of the command in the documents, without where its output goes."""
    texts = [each.text for each in all_commands()]
    texts += [text for each in documents() for text in re.findall(r"`([^`\n]+)`", prose(each))]
    calls = [text for text in texts if text.startswith("gpushare scheduler-config")]
    return [shlex.split(call.partition(">")[0])[2:] for call in calls]


def test_every_call_in_the_documents_prints_a_configuration(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(yaml.safe_dump(there()))
    calls = shown()
    assert {"--merge", "--scheduler-kubeconfig", "--url"} <= {word for c in calls for word in c}
    for call in calls:
        found = yaml.safe_load(printed(*call))
        assert found["scheduler" if "--kubeadm" in call else "extenders"]


def test_the_second_asks_as_the_first_does():
    first, second = (
        yaml.safe_load(printed(each)) for each in ("--control-plane", "--second-scheduler")
    )
    for key in ("extenders", "percentageOfNodesToScore"):
        assert first[key] == second[key]


def test_an_extender_elsewhere_is_asked_with_certificates_that_kubeadm_mounts():
    url = ("--url=https://10.0.0.5:29769", *TLS)
    (extender,) = yaml.safe_load(printed(*url))["extenders"]
    assert extender["urlPrefix"] == "https://10.0.0.5:29769/gpushare-scheduler"
    assert extender["enableHTTPS"] is True
    assert extender["tlsConfig"] == {
        "serverName": certificates.REPLICA,
        "caFile": "/etc/ca.crt",
        "certFile": "/etc/tls.crt",
        "keyFile": "/etc/tls.key",
    }
    scheduler = yaml.safe_load(printed("--kubeadm", *url))["scheduler"]
    mounted = {each["mountPath"] for each in scheduler["extraVolumes"]}
    assert mounted == {rules.PLACE, "/etc/ca.crt", "/etc/tls.crt", "/etc/tls.key"}
    assert all(each["hostPath"] == each["mountPath"] for each in scheduler["extraVolumes"])


def test_kube_schedulers_kubeconfig_may_lie_elsewhere():
    path = "/var/lib/rancher/k3s/server/cred/scheduler.kubeconfig"
    config = yaml.safe_load(printed("--scheduler-kubeconfig", path))
    assert config["clientConnection"]["kubeconfig"] == path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--url=http://10.0.0.5:29766",), "write https"),
        (("--url=https://10.0.0.5:29769",), "add --authority and --certificate and --key"),
        (("--url=https://10.0.0.5:x", *TLS), "--url https://10.0.0.5:x:"),
        (("--url=https://10.0.0.5/other", *TLS), "answers only at /gpushare-scheduler"),
        (("--url=https://a b", *TLS), "a b is not HOST:PORT"),
        (("--url=10.0.0.5:29769", *TLS), "write https://HOST:PORT"),
        (("--url=http://127.0.0.1:29766", *TLS), "is not an https address"),
        (TLS, "only with --url"),
        (("--authority=ca: x",), "write an absolute path"),
        (("--server-name=x",), "--server-name: only with --url"),
        (("--url=http://127.0.0.1:29766", "--server-name=x"), "is not an https address"),
        (("--second-scheduler", "--control-plane"), "omit --control-plane"),
        (("--second-scheduler", "--scheduler-kubeconfig=/x"), "omit --scheduler-kubeconfig"),
        (("--kubeadm", "--scheduler-kubeconfig=/x"), "not with --kubeadm"),
        (("--second-scheduler", "--kubeadm"), "omit --kubeadm"),
        (("--second-scheduler", "--merge=x.yaml"), "omit --merge"),
        (("--kubeadm", "--merge=x.yaml"), "use them one by one"),
        (("--merge=/nowhere/x.yaml",), "/nowhere/x.yaml: cannot be read: No such file"),
    ],
)
def test_flags_that_cannot_be_used_are_refused_with_what_to_write(arguments, said):
    result = asked(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in " ".join(result.stderr.split())


def test_merging_keeps_what_is_there_and_says_what_it_changed():
    own = there(
        leaderElection={"leaderElect": False},
        clientConnection={"kubeconfig": "/own.conf", "qps": 200},
        profiles=[{"schedulerName": "default-scheduler"}, {"schedulerName": "batch"}],
        extenders=[{"urlPrefix": "https://other", "filterVerb": "filter", "weight": 1}],
    )
    whole, told = merged(own)
    asked_first, ours = whole.pop("extenders")
    assert asked_first == own["extenders"][0]
    assert ours["urlPrefix"] == rules.BESIDE
    assert whole.pop("percentageOfNodesToScore") == 100
    connection = {"kubeconfig": "/own.conf", "qps": 200, "burst": 2000}
    assert whole.pop("clientConnection") == connection
    assert whole == {key: own[key] for key in whole}
    assert told == [
        "kept clientConnection.qps: 200 (1000 binds pods faster)",
        "added clientConnection.burst: 2000",
        "set percentageOfNodesToScore: 100",
        "added extenders[1]: http://127.0.0.1:29766/gpushare-scheduler",
        "comments are not kept",
    ]


def test_merging_twice_changes_nothing_more():
    once, _ = merged(there())
    again, told = merged(once)
    assert again == once
    assert told == ["comments are not kept"]


def test_an_older_extender_at_the_same_address_gets_our_settings():
    older = {
        "urlPrefix": "http://127.0.0.1:29766/gpushare-scheduler",
        "filterVerb": "filter",
        "bindVerb": "bind",
        "enableHTTPS": False,
        "nodeCacheCapable": True,
        "managedResources": [MEMORY],
        "ignorable": True,
    }
    whole, told = merged(there(extenders=[older]))
    assert whole["extenders"] == yaml.safe_load(printed())["extenders"]
    assert "changed extenders[0].ignorable, before and now: [true, false]" in told
    assert not any("filterVerb" in line for line in told)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "it is not a KubeSchedulerConfiguration"),
        ({"image": {}}, "it has no kind or no apiVersion; expected a KubeSchedulerConfiguration"),
        (
            {**there(), "apiVersion": "kubescheduler.config.k8s.io/v1beta3"},
            "it is a KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1beta3; expected",
        ),
        (there(extenders="none"), "its extenders is not a list of mappings"),
        (there(clientConnection=[]), "its clientConnection is not a mapping"),
        (there(percentageOfNodesToScore=30), "percentageOfNodesToScore is 30"),
        (
            there(profiles=[{"schedulerName": "a", "percentageOfNodesToScore": 5}]),
            "profiles[0].percentageOfNodesToScore is 5",
        ),
        (  # set, so kube-scheduler does not take the 100 for all profiles
            there(profiles=[{"schedulerName": "a"}, {"percentageOfNodesToScore": 0}]),
            "profiles[1].percentageOfNodesToScore is 0",
        ),
        (there(percentageOfNodesToScore=[5]), "percentageOfNodesToScore is [5]"),
        (
            there(extenders=[{"urlPrefix": "http://other", "bindVerb": "bind"}]),
            "extenders[0] (http://other) has a bindVerb",
        ),
        (
            there(extenders=[{"urlPrefix": "http://o", "managedResources": [MEMORY]}]),
            "extenders[0] (http://o) manages aliyun.com/gpu-mem, too",
        ),
    ],
)
def test_a_configuration_that_cannot_go_with_the_extender_is_refused(document, said):
    result = asked("--merge", "-", text=yaml.safe_dump(document))
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


BROKEN = ("a: [", "a: 1\na: 2\n", "a: 1\n---\nb: 1\n")
UNCONSTRUCTABLE = ("a: !!python/x y", "a: !!bool maybe", "a: !!timestamp never")


@pytest.mark.parametrize("text", [*BROKEN, *UNCONSTRUCTABLE])
def test_a_file_that_is_no_yaml_is_refused_by_its_name(text):
    result = asked("--merge", "-", text=text)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: -: is invalid YAML: ")
