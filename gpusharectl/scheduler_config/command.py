"""``gpushare scheduler-config``: print kube-scheduler's configuration."""

import ipaddress
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click
import yaml

from gpushare.contract import EXTENDER_PREFIX
from gpushare.errors import UNCONSTRUCTABLE, SettingsError
from gpushare.text import bounded_yaml
from gpusharectl.scheduler_config import rules as settings
from gpusharectl.terminal.say import say

_MAX_BYTES: Final = 2**20
_PATH: Final = re.compile(r"/[\w./+@-]+", re.ASCII)
_PLAIN_ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+)(:[0-9]+)?", re.ASCII)
_NAME: Final = re.compile(r"[\w.-]+", re.ASCII)


class _Loader(yaml.SafeLoader):
    """Rejects duplicate keys, like kube-scheduler."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if twice := sorted(key for key, count in keys.items() if count > 1):
            text = f"duplicate key {', '.join(twice)}"
            raise yaml.constructor.ConstructorError(None, None, text, node.start_mark)
        return super().construct_mapping(node, deep)


def _path(_: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Accept only what needs no quotes in YAML."""
    if value is not None and not _PATH.fullmatch(value):
        raise click.BadParameter(
            f"{value!r}: write an absolute path of letters, digits and ./_+@-", param=option
        )
    return value


def _name(_: click.Context, option: click.Parameter, value: str | None) -> str | None:
    if value is not None and not _NAME.fullmatch(value):
        raise click.BadParameter(f"{value!r}: write a DNS name", param=option)
    return value


@click.command
@click.option(
    "--control-plane",
    is_flag=True,
    help="For the cluster's own kube-scheduler, with an extender on its node (the default).",
)
@click.option(
    "--second-scheduler",
    is_flag=True,
    help="For a second kube-scheduler with an extender in its pod.",
)
@click.option("--url", metavar="URL", help="An extender elsewhere, such as https://10.0.0.5:29769.")
@click.option(
    "--authority",
    metavar="PATH",
    callback=_path,
    help="With --url: the CA of the extender's certificate.",
)
@click.option(
    "--certificate",
    metavar="PATH",
    callback=_path,
    help="With --url: kube-scheduler's client certificate.",
)
@click.option("--key", metavar="PATH", callback=_path, help="With --url: the certificate's key.")
@click.option(
    "--server-name",
    metavar="NAME",
    callback=_name,
    show_default=settings.SERVER_NAME,
    help="With --url: the name in the extender's certificate.",
)
@click.option(
    "--scheduler-kubeconfig",
    metavar="PATH",
    callback=_path,
    show_default=settings.KUBECONFIG,
    help="kube-scheduler's kubeconfig on its node.",
)
@click.option(
    "--merge",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="Merge it into this configuration; changes are printed to stderr.",
)
@click.option(
    "--kubeadm", is_flag=True, help="Print the part of kubeadm's ClusterConfiguration instead."
)
def scheduler_config(
    *,
    control_plane: bool,
    second_scheduler: bool,
    url: str | None,
    scheduler_kubeconfig: str | None,
    merge: Path | None,
    kubeadm: bool,
    **tls: str | None,
) -> None:
    """Print kube-scheduler's configuration with the extender.

    Writes no file: redirect it to where kube-scheduler reads it. Paths are those on
    kube-scheduler's node and are not checked here.
    """
    extender = _extender(url, tls)
    own = scheduler_kubeconfig or settings.KUBECONFIG
    if second_scheduler:
        others = {
            "--control-plane": control_plane,
            "--url": url,
            "--merge": merge,
            "--kubeadm": kubeadm,
            "--scheduler-kubeconfig": scheduler_kubeconfig,
        }
        if given := [flag for flag, value in others.items() if value]:
            raise click.UsageError(
                f"--second-scheduler has its own file and its extender in its pod: omit "
                f"{' and '.join(given)}"
            )
        say(settings.second(), nl=False)
    elif kubeadm:
        if merge is not None:
            text = "--kubeadm and --merge print different files: use them one by one"
            raise click.UsageError(text)
        if scheduler_kubeconfig is not None:
            raise click.UsageError("--scheduler-kubeconfig: not with --kubeadm")
        say(settings.kubeadm(extender), nl=False)
    elif merge is not None:
        wanted = yaml.safe_load(settings.first(extender, own))
        try:
            whole, told = settings.merge(_read(merge), wanted)
        except SettingsError as err:
            raise SettingsError(f"{merge}: {err}") from err
        for line in [*told, "comments are not kept"]:
            say(line, err=True)
        say(yaml.safe_dump(whole, sort_keys=False), nl=False)
    else:
        say(settings.first(extender, own), nl=False)


def _extender(url: str | None, tls: Mapping[str, str | None]) -> settings.ExtenderUrl:
    flags = {each.name: f"--{each.name.replace('_', '-')}" for each in fields(settings.Tls)}
    given = [flag for name, flag in flags.items() if tls[name]]
    if url is None:
        if given:
            raise click.UsageError(f"{' and '.join(given)}: only with --url https://...")
        return settings.ExtenderUrl()
    whole = _checked(url)
    if whole.startswith("http:"):
        if given:
            raise click.UsageError(f"{' and '.join(given)}: {url} is not an https address")
        return settings.ExtenderUrl(whole)
    found = {"server_name": settings.SERVER_NAME, **{k: v for k, v in tls.items() if v}}
    if missing := [flag for name, flag in flags.items() if name not in found]:
        raise click.UsageError(
            f"{url} requires mutual TLS: add {' and '.join(missing)} "
            "(files of the Secret gpushare-scheduler-tls)"
        )
    return settings.ExtenderUrl(whole, settings.Tls(**found))


def _checked(url: str) -> str:
    """Return the URL with the extenders' path; UsageError for an invalid URL."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as err:
        raise click.UsageError(f"--url {url}: {err}") from err
    if parts.scheme not in {"http", "https"} or not host or parts.query or parts.fragment:
        raise click.UsageError(f"--url {url}: write https://HOST:PORT")
    if not _PLAIN_ADDRESS.fullmatch(parts.netloc):
        raise click.UsageError(f"--url {url}: {parts.netloc} is not HOST:PORT")
    if parts.path.rstrip("/") not in {"", EXTENDER_PREFIX}:
        raise click.UsageError(f"--url {url}: the extender answers only at {EXTENDER_PREFIX}")
    if parts.scheme == "http" and not _is_loopback(host):
        raise click.UsageError(
            f"--url {url}: without TLS an extender answers only on its own node, because its "
            "callers can bind pods; write https"
        )
    return f"{parts.scheme}://{parts.netloc}{EXTENDER_PREFIX}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read(path: Path) -> Any:
    try:
        with click.open_file(str(path), "rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as err:
        raise SettingsError(f"cannot be read: {err.strerror or err}") from err
    if len(content) > _MAX_BYTES:
        raise SettingsError(f"is larger than {_MAX_BYTES} bytes: it is not a configuration")
    try:
        return bounded_yaml.load(content, _Loader)
    except (yaml.YAMLError, *UNCONSTRUCTABLE) as err:
        raise SettingsError(f"is invalid YAML: {' '.join(str(err).split())}") from err
