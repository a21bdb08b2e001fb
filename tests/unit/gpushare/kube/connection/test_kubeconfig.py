"""An invalid kubeconfig is an error that states the problem and repeats no contents."""

import json
from itertools import pairwise

import pytest
import yaml

from gpushare.errors import SettingsError
from gpushare.kube.connection.kubeconfig import Cluster, User, choose


def whole(**changed):
    made = {
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443"}}],
        "users": [{"name": "u", "user": {"token": "t0ps3cret"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    return {**made, **changed}


def refused(content, context=None):
    if not isinstance(content, bytes):
        content = yaml.safe_dump(content).encode()
    with pytest.raises(SettingsError) as caught:
        choose([("here", content)], context)
    assert "t0ps3cret" not in str(caught.value)
    return str(caught.value)


BOMB = "".join(f"{{a: &{new} [{f'*{old}, ' * 9}]}},\n" for old, new in pairwise("abcdefgh"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[*top]", "an alias contains itself"),
        (f"[&a [{'x' * 90}],\n{BOMB}]", "aliases expand to more than 1000000 characters"),
        ("{a: 1" + ":59" * 60_000 + "}", "a number of 180001 characters: write text in quotes"),
    ],
)
def test_what_grows_in_an_extension_is_an_error_of_the_kubeconfig(text, says):
    def with_extension(text):
        extensions = f"extensions: [{{name: e, extension: &top {text}}}]"
        cluster = f"clusters: [{{name: c, cluster: {{server: 'https://10.0.0.1', {extensions}}}}}]"
        rest = "contexts: [{name: x, context: {cluster: c}}]\ncurrent-context: x"
        return f"{cluster}\n{rest}\n".encode()

    (found,) = choose([("here", with_extension("{a: b}"))], None).cluster.extensions
    assert found.extension == {"a": "b"}
    said = refused(with_extension(text))
    assert said.startswith("here is not valid YAML: line ")
    assert said.endswith(says)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"only text with t0ps3cret", "users and contexts: Expected `object`, got `str`"),
        (b"- a list", "got `array`"),
        (b"a: b: t0ps3cret", "not valid YAML: line 1: "),
        (b"\xff\xfe\x01", "not valid YAML in UTF-8"),
        (b"x: !!python/object:os.system t0ps3cret", "not valid YAML: line 1: "),
        (b"[" * 5000, "not valid YAML"),
        (b'users:\n- name: "\\ud800 t0ps3cret"', "line 2: half of a surrogate pair"),
        (whole(contexts=7), "got `int` - at `$.contexts`"),
        (whole(contexts=[{"context": {}}]), "missing required field `name`"),
        (whole(users=None), "user 'u', which does not exist; existing: none"),
        (whole(clusters=[]), "cluster 'c', which does not exist; existing: none"),
        (whole(users=[{"name": "u", "user": {"token": 7}}]), "at `$.users[0].user.token`"),
        (whole(users=[{"name": "u"}, {"name": "u"}]), "has 'u' twice"),
        (whole(**{"current-context": "y"}), "no context 'y'; existing: x"),
        (whole(**{"current-context": ""}), "current-context: name one with --context; existing: x"),
        (whole(users=[{"name": "u", "user": {"exec": {"args": []}}}]), "required field `command`"),
        (
            whole(users=[{"name": "u", "user": {"auth-provider": {"name": "gcp"}}}]),
            "user 'u': auth-provider is not supported, as in kubectl since 1.26: use the exec",
        ),
    ],
)
def test_an_error_states_the_problem(content, says):
    assert says in refused(content)


@pytest.mark.parametrize(
    ("cluster", "says"),
    [
        ({}, "cluster 'c': server is ''"),
        ({"server": "10.0.0.1:6443"}, "write https://HOST:PORT"),
        ({"server": "https://a:99999"}, "write https://HOST:PORT"),
        ({"server": "https://a b"}, "write https://HOST:PORT"),
        ({"server": "https://a..b"}, "write https://HOST:PORT"),
        ({"server": f"https://{'a' * 64}.b"}, "write https://HOST:PORT"),
        ({"server": "https://me:t0ps3cret@a"}, "server has a user, a query or a fragment"),
        ({"server": "https://a?b=t0ps3cret"}, "server has a user, a query or a fragment"),
        ({"server": "https://a#t0ps3cret"}, "server has a user, a query or a fragment"),
        ({"server": "https://a", "proxy-url": "socks5://b:1"}, "proxy-url is 'socks5://b:1'"),
        ({"server": "https://a", "certificate-authority-data": "%"}, "data is not valid base64"),
        ({"server": "https://a", "insecure-skip-tls-verify": "no"}, "Expected `bool | null`"),
    ],
)
def test_an_error_about_a_cluster_states_the_problem(cluster, says):
    assert says in refused(whole(clusters=[{"name": "c", "cluster": cluster}]))


@pytest.mark.parametrize(
    ("user", "says"),
    [
        ({"as": "a\nb"}, "user 'u': as has a line break"),
        ({"as-uid": "a\0"}, "user 'u': as-uid has a line break"),
        ({"as-groups": ["a", "b\r"]}, "user 'u': as-groups has a line break"),
        ({"as-user-extra": {"k": ["\x7f"]}}, "user 'u': as-user-extra has a line break"),
        ({"client-certificate": "c"}, "user 'u': client-certificate without client-key: add"),
        ({"client-key-data": "eA=="}, "user 'u': client-key without client-certificate: add"),
    ],
)
def test_an_error_about_a_user_states_the_problem(user, says):
    assert says in refused(whole(users=[{"name": "u", "user": user}]))


def test_a_context_can_be_named():
    both = [*whole()["contexts"], {"name": "z", "context": {"cluster": "c", "namespace": "n"}}]
    content = yaml.safe_dump(whole(contexts=both)).encode()
    found = choose([("here", content)], "z")
    assert found is not None
    assert (found.user, found.namespace, found.where) == (User(), "n", "context z in here")
    assert "no context 'w'; existing: x, z" in refused(content, "w")


def test_a_name_that_looks_like_a_date_stays_a_string():
    content = b"""\
clusters: [{name: c, cluster: {server: "https://a"}}]
contexts: [{name: 2026-02-30, context: {cluster: c}}]
current-context: 2026-02-30
"""
    found = choose([("here", content)], None)
    assert found is not None
    assert found.cluster == Cluster(server="https://a")


def test_a_password_may_have_characters_that_json_writes_in_two_halves():
    user = {"username": "u", "password": "\N{KEY}"}
    content = json.dumps(whole(users=[{"name": "u", "user": user}])).encode()
    found = choose([("here", content)], None)
    assert found is not None
    assert found.user == User(username="u", password="\N{KEY}")  # noqa: S106 - opens nothing
