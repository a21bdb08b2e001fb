"""Merge kubeconfig files as kubectl does, and choose one of their contexts (pure)."""

import base64
import binascii
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
import yaml

from gpushare.errors import UNCONSTRUCTABLE, SettingsError


class _Loader(yaml.SafeLoader):
    """Loads a name that looks like a date as a string."""


_Loader.add_constructor(  # type: ignore[type-var] # its stub does not accept subclasses
    "tag:yaml.org,2002:timestamp", yaml.SafeLoader.construct_yaml_str
)


class _Part(msgspec.Struct, rename="kebab", omit_defaults=True):
    pass


class _Cluster(_Part):
    server: str | None = None
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool | None = None
    tls_server_name: str | None = None
    proxy_url: str | None = None


class _Variable(_Part):
    name: str
    value: str


class _Exec(_Part):
    command: str
    api_version: str = msgspec.field(name="apiVersion")
    args: list[str] | None = None
    env: list[_Variable] | None = None


class _User(_Part):
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = msgspec.field(name="tokenFile", default=None)
    username: str | None = None
    password: str | None = None
    exec: _Exec | None = None
    auth_provider: dict[str, Any] | None = None


class _Context(_Part):
    cluster: str = ""
    user: str = ""
    namespace: str | None = None


class _NamedCluster(_Part):
    name: str
    cluster: _Cluster | None = None


class _NamedUser(_Part):
    name: str
    user: _User | None = None


class _NamedContext(_Part):
    name: str
    context: _Context | None = None


class _File(_Part):
    current_context: str | None = None
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """A context. ``cluster`` and ``user`` are in the format of kubeconfigs, with whole paths.

    ``namespace`` is empty if the context has none; ``where`` names the files in error texts.
    """

    cluster: dict[str, Any]
    user: dict[str, Any]
    namespace: str
    where: str


N = TypeVar("N", _NamedCluster, _NamedUser, _NamedContext)


def choose(files: Sequence[tuple[str, bytes]], context: str | None) -> Chosen | None:
    """Return the named context, else the current one; None if all files are empty.

    ``files`` are paths and contents. An entry in several files is taken from the first one, as
    kubectl does (k8s.io/client-go, tools/clientcmd/loader.go). Raises SettingsError.
    """
    read = [(path, _read(path, content)) for path, content in files]
    where = " and ".join(path for path, _ in files)
    clusters, users, contexts = (
        _merged((path, getattr(file, kind)) for path, file in read)
        for kind in ("clusters", "users", "contexts")
    )
    current = next((file.current_context for _, file in read if file.current_context), None)
    if not (clusters or users or contexts or current):
        return None
    name = context or current
    if not name:
        raise SettingsError(
            f"{where} has no current-context: name one with --context; {_existing(contexts)}"
        )
    if name not in contexts:
        raise SettingsError(f"{where} has no context {name!r}; {_existing(contexts)}")
    wanted = contexts[name][1].context or _Context()
    home, named = _named(clusters, "cluster", wanted.cluster, f"{where}: context {name!r}")
    cluster = _cluster(named.cluster or _Cluster(), f"{home}: cluster {wanted.cluster!r}", home)
    user = {}
    if wanted.user:
        home, who = _named(users, "user", wanted.user, f"{where}: context {name!r}")
        user = _user(who.user or _User(), f"{home}: user {wanted.user!r}", home)
    return Chosen(cluster, user, wanted.namespace or "", where)


def _read(path: str, content: bytes) -> _File:
    # Error texts do not repeat contents: they may be tokens.
    try:
        found = yaml.load(content, _Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as err:
        line = f"line {err.problem_mark.line + 1}: " if err.problem_mark else ""
        raise SettingsError(f"{path} is not valid YAML: {line}{err.problem}") from err
    except (yaml.YAMLError, *UNCONSTRUCTABLE) as err:
        raise SettingsError(f"{path} is not valid YAML in UTF-8") from err
    try:
        return msgspec.convert({} if found is None else found, _File)
    except msgspec.ValidationError as err:
        raise SettingsError(
            f"{path} is not a kubeconfig with lists of clusters, users and contexts: {err}"
        ) from err


def _merged(lists: Iterable[tuple[str, list[N] | None]]) -> dict[str, tuple[str, N]]:
    found: dict[str, tuple[str, N]] = {}
    for path, named in lists:
        own: set[str] = set()
        for each in named or ():
            if each.name in own:
                raise SettingsError(f"{path} has {each.name!r} twice in one list")
            own.add(each.name)
            found.setdefault(each.name, (path, each))
    return found


def _named(found: dict[str, tuple[str, N]], kind: str, name: str, where: str) -> tuple[str, N]:
    if name not in found:
        raise SettingsError(
            f"{where} names {kind} {name!r}, which does not exist; {_existing(found)}"
        )
    return found[name]


def _existing(named: dict[str, Any]) -> str:
    return f"existing: {', '.join(sorted(named)) or 'none'}"


def _cluster(found: _Cluster, where: str, file: str) -> dict[str, Any]:
    _is_url(found.server or "", f"{where}: server")
    if found.proxy_url:
        _is_url(found.proxy_url, f"{where}: proxy-url")
    found.certificate_authority = _resolved(file, found.certificate_authority)
    return _checked(found, where)


def _user(found: _User, where: str, file: str) -> dict[str, Any]:
    found.client_certificate = _resolved(file, found.client_certificate)
    found.client_key = _resolved(file, found.client_key)
    found.token_file = _resolved(file, found.token_file)
    if found.exec is not None and os.sep in found.exec.command:
        found.exec.command = _resolved(file, found.exec.command) or ""
    return _checked(found, where)


def _resolved(file: str, path: str | None) -> str | None:
    """Resolve a path of a kubeconfig, which is relative to the kubeconfig's directory."""
    return os.path.join(os.path.dirname(file), path) if path else None  # noqa: PTH118, PTH120 - pure


def _checked(found: _Cluster | _User, where: str) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(found)
    for key, value in plain.items():
        if key.endswith("-data"):
            try:
                base64.b64decode("".join(value.split()), validate=True)
            except (binascii.Error, ValueError) as err:
                raise SettingsError(f"{where}: {key} is not valid base64: {err}") from err
    return plain


def _is_url(text: str, where: str) -> None:
    try:
        parts = urlsplit(text)
        is_one = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_one = False
    if not is_one or not text.isprintable() or " " in text:
        raise SettingsError(f"{where} is {text!r}: write https://HOST:PORT or http://HOST:PORT")
