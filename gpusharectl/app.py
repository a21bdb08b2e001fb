"""The command ``gpushare``. Each of its commands is imported when it is used."""

from importlib import import_module, metadata
from typing import Final

import click

from gpushare.errors import UNDECODABLE, ApiError, GpushareError, SettingsError
from gpusharectl.terminal.exits import Ending

# By name: where the command is. The first line of its docstring is its line in --help.
COMMANDS: Final[dict[str, str]] = {
    "inspect": "gpusharectl.inspect.command:command",
    "explain": "gpusharectl.explain.command:command",
    "what-if": "gpusharectl.what_if.command:command",
    "completion": "gpusharectl.completion:command",
    "doctor": "gpusharectl.doctor.command:doctor",
    "top": "gpusharectl.top:top",
    "page": "gpusharectl.page:page",
    "cordon-gpu": "gpusharectl.cordon:cordon_gpu",
    "uncordon-gpu": "gpusharectl.cordon:uncordon_gpu",
    "simulate": "gpusharectl.simulate.command:simulate",
    "scheduler-config": "gpusharectl.scheduler_config.command:scheduler_config",
    "migrate": "gpusharectl.migrate.command:command",
    "uninstall": "gpusharectl.uninstall.command:command",
}


class _Commands(click.Group):
    """Imports a command when it is named, so that no command loads the others' libraries."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        place = COMMANDS.get(name)
        if place is None:
            return None
        module, _, attribute = place.partition(":")
        found: click.Command = getattr(import_module(module), attribute)
        return found

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except GpushareError as err:
            raise Ending(err) from err
        except UNDECODABLE as err:
            text = f"the cluster sent an answer that cannot be read: {err}"
            raise Ending(ApiError(text)) from err
        except UnicodeEncodeError as err:  # arguments are passed on as typed
            text = f"{err.object!r:.200} has bytes that are not text in your locale's encoding"
            raise Ending(SettingsError(text)) from err


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(metadata.version("gpushare"), prog_name="gpushare")
def cli() -> None:
    """Show, explain and manage shared GPUs in a Kubernetes cluster."""
