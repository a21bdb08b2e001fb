"""The option ``--policy``, which compares node policies."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from gpushare.cards.placement_policy import NodePolicy

F = TypeVar("F", bound=Callable[..., Any])

# Those that mean the same in every cluster.
WITHOUT_SETTINGS: Final = tuple(each for each in NodePolicy if each is not NodePolicy.SHAPE)
NODE_POLICY: Final = click.Choice([each.value for each in WITHOUT_SETTINGS])


def _policies(
    _ctx: click.Context, _option: click.Parameter, names: tuple[str, ...]
) -> tuple[NodePolicy, ...]:
    return tuple(NodePolicy(name) for name in dict.fromkeys(names))


def compares_policies(command: F) -> F:
    """Add the option, whose value is ``policies``: different ones in the order of the user."""
    return click.option(
        "--policy",
        "policies",
        type=NODE_POLICY,
        multiple=True,
        callback=_policies,
        help="Compare node policies in a table; repeat it for each of them.",
    )(command)
