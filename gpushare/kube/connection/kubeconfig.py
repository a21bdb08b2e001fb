"""Merge kubeconfig files as kubectl does, and choose one of their contexts (pure)."""

import base64
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec
import yaml
from yaml.constructor import ConstructorError

from gpushare.errors import UNCONSTRUCTABLE, SettingsError
from gpushare.text import bounded_yaml


class _Loader(yaml.SafeLoader):
    """Loads a name that looks like a date as a string, and every string as valid Unicode."""

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        """Join the surrogates by which JSON writes a character, and reject one without its pair."""
        found = super().construct_scalar(node)
        try:
            return found.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError as err:
            problem = "half of a surrogate pair, which is no character"
            raise ConstructorError(problem=problem, problem_mark=node.start_mark) from err


_Loader.add_constructor(  # type: ignore[type-var] # its stub does not accept subclasses
    "tag:yaml.org,2002:timestamp", yaml.SafeLoader.construct_yaml_str
)


class _Part(msgspec.Struct, rename="kebab", omit_defaults=True):
    pass


class Extension(_Part):
    name: str
    extension: Any = None


class Cluster(_Part):
    server: str = ""
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool | None = None
    tls_server_name: str | None = None
    proxy_url: str | None = None
    extensions: list[Extension] | None = None


class Variable(_Part):
    name: str
    value: str


class Exec(_Part):
    command: str
    api_version: str = msgspec.field(name="apiVersion")
    args: list[str] | None = None
    env: list[Variable] | None = None
    install_hint: str | None = msgspec.field(name="installHint", default=None)
    provides_cluster: bool = msgspec.field(name="provideClusterInfo", default=False)
    interactive_mode: Literal["Never", "IfAvailable", "Always"] | None = msgspec.field(
        name="interactiveMode", default=None
    )


class User(_Part):
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = msgspec.field(name="tokenFile", default=None)
    username: str | None = None
    password: str | None = None
    exec: Exec | None = None
    auth_provider: dict[str, Any] | None = None
    as_user: str | None = msgspec.field(name="as", default=None)
    as_uid: str | None = None
    as_groups: list[str] | None = None
    as_user_extra: dict[str, list[str]] | None = None


class _Context(_Part):
    cluster: str = ""
    user: str = ""
    namespace: str | None = None


class _NamedCluster(_Part):
    name: str
    cluster: Cluster | None = None


class _NamedUser(_Part):
    name: str
    user: User | None = None


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
    """A context, with whole paths. ``user_name`` and ``namespace`` are empty if it has none.

    ``where`` names the context and its file.
    """

    cluster: Cluster
    user: User
    user_name: str
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
    origin, context_ = contexts[name]
    wanted = context_.context or _Context()
    home, named = _named(clusters, "cluster", wanted.cluster, f"{where}: context {name!r}")
    cluster = _cluster(named.cluster or Cluster(), f"{home}: cluster {wanted.cluster!r}", home)
    user = User()
    if wanted.user:
        home, who = _named(users, "user", wanted.user, f"{where}: context {name!r}")
        user = _user(who.user or User(), f"{home}: user {wanted.user!r}", home)
    return Chosen(cluster, user, wanted.user, wanted.namespace or "", f"context {name} in {origin}")


def _read(path: str, content: bytes) -> _File:
    # Error texts do not repeat contents: they may be tokens.
    try:
        found = bounded_yaml.load(content, _Loader)
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


def _cluster(found: Cluster, where: str, file: str) -> Cluster:
    _require_url(found.server, f"{where}: server")
    parts = urlsplit(found.server)
    if "@" in parts.netloc or parts.query or parts.fragment:  # a password is not shown
        raise SettingsError(
            f"{where}: server has a user, a query or a fragment: write only https://HOST:PORT, and "
            "put credentials into the user"
        )
    if found.proxy_url:
        _require_url(found.proxy_url, f"{where}: proxy-url")
    found.certificate_authority = _resolved(file, found.certificate_authority)
    _check_data(where, {"certificate-authority-data": found.certificate_authority_data})
    return found


def _user(found: User, where: str, file: str) -> User:
    if found.auth_provider is not None:
        raise SettingsError(
            f"{where}: auth-provider is not supported, as in kubectl since 1.26: use the exec "
            "plugin of your provider, such as gke-gcloud-auth-plugin or kubelogin"
        )
    found.client_certificate = _resolved(file, found.client_certificate)
    found.client_key = _resolved(file, found.client_key)
    found.token_file = _resolved(file, found.token_file)
    if found.exec is not None and os.sep in found.exec.command:
        found.exec.command = _resolved(file, found.exec.command) or ""
    certificate, key = found.client_certificate_data, found.client_key_data
    _check_data(where, {"client-certificate-data": certificate, "client-key-data": key})
    _check_identity(found, where)
    return found


def _check_identity(found: User, where: str) -> None:
    """Raise SettingsError for what a header cannot have, and for half a client certificate."""
    extra = [text for key, values in (found.as_user_extra or {}).items() for text in (key, *values)]
    for name, texts in (
        ("as", [found.as_user or ""]),
        ("as-uid", [found.as_uid or ""]),
        ("as-groups", found.as_groups or []),
        ("as-user-extra", extra),
    ):
        if not all(text.isprintable() for text in texts):
            raise SettingsError(
                f"{where}: {name} has a line break or another control character in it: remove it"
            )
    has_certificate = bool(found.client_certificate or found.client_certificate_data)
    has_key = bool(found.client_key or found.client_key_data)
    if has_certificate != has_key:
        there, missing = "client-certificate", "client-key"
        if has_key:
            there, missing = missing, there
        raise SettingsError(
            f"{where}: {there} without {missing}: add {missing} or {missing}-data, or remove the "
            f"{there}"
        )


def _resolved(file: str, path: str | None) -> str | None:
    """Resolve a path of a kubeconfig, which is relative to the kubeconfig's directory."""
    return os.path.join(os.path.dirname(file), path) if path else None  # noqa: PTH118, PTH120 - pure


def _check_data(where: str, data: Mapping[str, str | None]) -> None:
    for key, value in data.items():
        try:
            decoded(value or "")
        except ValueError as err:
            raise SettingsError(f"{where}: {key} is not valid base64: {err}") from err


def decoded(data: str) -> bytes:
    """Decode a value whose key ends with "-data"; ValueError if it is not base64."""
    return base64.b64decode("".join(data.split()), validate=True)


def _require_url(text: str, where: str) -> None:
    if not is_url(text):
        raise SettingsError(f"{where} is {text!r}: write https://HOST:PORT or http://HOST:PORT")


def is_url(text: str) -> bool:
    """Return whether it is the URL of an HTTP server or proxy."""
    try:
        parts = urlsplit(text)
        is_one = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        (parts.hostname or "").encode("idna")  # as DNS needs it
    except ValueError:
        return False
    return is_one and text.isprintable() and " " not in text
