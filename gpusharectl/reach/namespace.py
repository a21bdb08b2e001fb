"""The options ``--namespace`` and ``--all-namespaces``, as in kubectl."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from gpusharectl.reach.completion import complete_namespace
from gpusharectl.reach.options import checked_namespace

F = TypeVar("F", bound=Callable[..., Any])


def in_namespace(text: str = "Same as in kubectl.") -> Callable[[F], F]:
    """Add the option with this help text."""
    return click.option(
        "-n",
        "--namespace",
        metavar="NAME",
        callback=checked_namespace,
        shell_complete=complete_namespace,
        help=text,
    )


def or_in_all(text: str = "Show all namespaces.") -> Callable[[F], F]:
    """Add the option for all namespaces, whose value is ``everything``."""
    return click.option("-A", "--all-namespaces", "everything", is_flag=True, help=text)
