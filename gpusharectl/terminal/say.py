"""Write lines of text to stdout or stderr."""

import click

from gpushare.text.printable import printable


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Write the text, and a newline if ``nl``, without what a terminal would obey.

    Every text of the command line is written by this or by ``terminal.output``.
    """
    click.echo(printable(text), err=err, nl=nl)  # noqa: TID251 - here alone
