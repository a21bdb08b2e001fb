"""The options of commands that serve a page."""

import click

from gpushare.contract import EXTENDER_PORT
from gpusharectl.terminal.whole_number import WholeNumber

port_option = click.option(
    "--port",
    type=WholeNumber(0, 65535),
    default=EXTENDER_PORT,
    show_default=True,
    help="Port on this machine's loopback interface; 0 for any free one.",
)
browse_option = click.option("-b", "--browse", is_flag=True, help="Open the page in the browser.")
