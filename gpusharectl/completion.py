"""``gpushare completion``, and the program that kubectl runs to complete its plugin."""

import sys
from typing import Final

import click
from click.shell_completion import ShellComplete, get_completion_class

from gpusharectl.terminal import streams
from gpusharectl.terminal.say import say

VARIABLE: Final = "_GPUSHARE_COMPLETE"
_NO_FILES: Final = 4  # cobra's ShellCompDirectiveNoFileComp
_DEFAULT: Final = 0


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    For bash: `source <(gpushare completion bash)`.
    """
    found = get_completion_class(shell)
    assert found is not None  # noqa: S101 - click has these three
    say(found(ctx.find_root().command, {}, "gpushare", VARIABLE).source())


def kubectl() -> None:
    """Answer ``kubectl_complete-gpushare WORD... BEGUN`` as kubectl expects.

    https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/ describes the program, cobra's
    documentation of completion the lines and the number at the end.
    """
    streams.run(_complete)


def _complete() -> None:
    from gpusharectl.app import cli  # noqa: PLC0415 - this module is one of its commands

    *words, begun = sys.argv[1:] or [""]
    items = ShellComplete(cli, {}, "kubectl gpushare", VARIABLE).get_completions(words, begun)
    for item in items:
        if item.type == "plain":
            say(f"{item.value}\t{item.help}" if item.help else item.value)
    files = any(item.type != "plain" for item in items)
    say(f":{_DEFAULT if files else _NO_FILES}")
