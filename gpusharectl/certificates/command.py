"""``gpushare certificates``: print the Secrets with the certificates."""

import base64
import datetime as dt
from collections.abc import Mapping
from typing import Final

import click
import msgspec

from gpushare.errors import SettingsError
from gpusharectl.reach.options import system_namespace
from gpusharectl.terminal.say import say
from gpusharectl.terminal.whole_number import WholeNumber

_DAYS: Final = 3650
_MOST_DAYS: Final = 36_500
EXTRA: Final = "certificates"  # the optional dependencies in pyproject.toml


@click.command("certificates")
@system_namespace("Namespace of the Secrets.")
@click.option(
    "--days",
    type=WholeNumber(1, _MOST_DAYS),
    default=_DAYS,
    show_default=True,
    help="How long they are valid.",
)
def command(system_namespace: str, days: int) -> None:
    """Print new certificates of the extender, as Secrets.

    Apply them: gpushare certificates | kubectl apply -f -. The Secrets are gpushare-extender-tls
    and, for a kube-scheduler on another machine, gpushare-scheduler-tls. To renew
    them, replace both, and run helm upgrade if the chart serves a webhook, which must trust the new
    authority. helm upgrade and cert-manager renew those that they made.
    """
    try:
        from gpusharectl.certificates.files import (  # noqa: PLC0415 - an optional dependency
            REPLICA,
            SCHEDULER,
            make,
        )
    except ModuleNotFoundError as err:
        raise SettingsError(
            f"making certificates needs the Python package {err.name}, which is not installed: run "
            "docker run --rm IMAGE gpushare certificates | kubectl apply -f -, where IMAGE is "
            f"gpushare's image, or pip install './gpushare[{EXTRA}]' in the folder that contains "
            "the checkout"
        ) from err
    hosts = {REPLICA: (f"{REPLICA}.{system_namespace}.svc",)}
    files = make((REPLICA, SCHEDULER), now=dt.datetime.now(dt.UTC), days=days, hosts=hosts)
    for name in (REPLICA, SCHEDULER):
        of_name = {
            "ca.crt": files["ca.crt"],
            "tls.crt": files[f"{name}.crt"],
            "tls.key": files[f"{name}.key"],
        }
        say(f"---\n{_secret(f'{name}-tls', system_namespace, of_name)}")


def _secret(name: str, namespace: str, files: Mapping[str, bytes]) -> str:
    """Return a Secret with these files, as JSON, which is also YAML."""
    document = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": namespace,
            # Else helm upgrade deletes a Secret that replaces one of the chart's.
            "annotations": {"helm.sh/resource-policy": "keep"},
        },
        "type": "Opaque",
        "data": {key: base64.b64encode(value).decode() for key, value in files.items()},
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
