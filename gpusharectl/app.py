"""The command ``gpushare`` and the table of its commands. A command is imported when it is used."""

from importlib import import_module
from typing import Final

import click
from click.shell_completion import CompletionItem

# By group and name: where the command is, and the first sentence of its docstring.
TABLE: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "Basic commands": {
        "inspect": (
            "gpusharectl.inspect.command:command",
            "Show nodes, GPUs, shares and what is free.",
        ),
        "explain": (
            "gpusharectl.explain.command:command",
            "Explain why a pod is Pending, or where it runs.",
        ),
        "what-if": (
            "gpusharectl.what_if.command:command",
            "Check whether a pod would fit now.",
        ),
        "gangs": (
            "gpusharectl.gangs.command:command",
            "Show groups of pods that start together.",
        ),
        "queue": (
            "gpusharectl.queue.command:command",
            "Show what waits for room, in its order.",
        ),
        "quota": (
            "gpusharectl.quota.command:command",
            "Show what namespaces use of their quotas.",
        ),
        "page": (
            "gpusharectl.page:page",
            "Show every GPU and the Pending pods live in a browser.",
        ),
        "simulate": (
            "gpusharectl.simulate.command:simulate",
            "Show where pods would be placed, without a cluster.",
        ),
    },
    "Troubleshooting": {
        "doctor": (
            "gpusharectl.doctor.command:doctor",
            "Find problems in the cluster's setup, each with its fix.",
        ),
        "top": (
            "gpusharectl.top:top",
            "Show what pods use of GPUs, next to what they requested.",
        ),
    },
    "Administration": {
        "cordon-gpu": (
            "gpusharectl.cordon:cordon_gpu",
            "Close GPUs of a node for new pods.",
        ),
        "uncordon-gpu": (
            "gpusharectl.cordon:uncordon_gpu",
            "Open GPUs of a node for pods again.",
        ),
        "defragment": (
            "gpusharectl.defragment.command:command",
            "Show which pods to restart elsewhere so that there is room.",
        ),
        "scheduler-config": (
            "gpusharectl.scheduler_config.command:scheduler_config",
            "Print kube-scheduler's configuration with the extender.",
        ),
        "certificates": (
            "gpusharectl.certificates.command:command",
            "Print new certificates of the extender, as Secrets.",
        ),
        "migrate": (
            "gpusharectl.migrate.command:command",
            "Find what blocks a migration from Aliyun gpushare.",
        ),
        "uninstall": (
            "gpusharectl.uninstall.command:command",
            "Remove gpushare from the cluster.",
        ),
    },
    "Other commands": {
        "version": (
            "gpusharectl.version:version",
            "Show the versions of gpushare's programs.",
        ),
        "completion": (
            "gpusharectl.completion:command",
            "Print the completion script of a shell.",
        ),
    },
}
COMMANDS: Final = {name: place for group in TABLE.values() for name, place in group.items()}


def imported(name: str) -> click.Command:
    """Import a command of the table."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    found: click.Command = getattr(import_module(module), attribute)
    return found


class _Commands(click.Group):
    """Imports a command when it is named, and none to list them.

    Options before the command are defaults of its own options of the same names.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        given = {name: value for name, value in ctx.params.items() if value is not None}
        ctx.default_map = dict.fromkeys(COMMANDS, given)
        return rest

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        return imported(name) if name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            name, command, rest = super().resolve_command(ctx, args)
        except click.NoSuchCommand as err:  # click's one suggests commands that are imported
            raise click.NoSuchCommand(err.command_name, possibilities=COMMANDS, ctx=ctx) from None
        is_usable = command is None or any(each.name == "namespace" for each in command.params)
        if ctx.params["namespace"] is not None and not (is_usable or ctx.resilient_parsing):
            raise click.UsageError(f"--namespace does not apply to {name}", ctx)
        return name, command, rest

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        widest = max(map(len, COMMANDS))
        for group, commands in TABLE.items():
            with formatter.section(group):
                rows = [(name.ljust(widest), help_) for name, (_, help_) in commands.items()]
                formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        commands = [
            CompletionItem(name, help=help_)
            for name, (_, help_) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> object:
        from gpusharectl.terminal.exits import ending  # noqa: PLC0415 - --help does not need it

        with ending():
            return super().invoke(ctx)


def _namespaces(ctx: click.Context, option: click.Parameter, begun: str) -> list[CompletionItem]:
    from gpusharectl.reach.completion import complete_namespace  # noqa: PLC0415 - as above

    return complete_namespace(ctx, option, begun)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--kubeconfig", metavar="FILE", type=click.Path(), help="Same as in kubectl.")
@click.option("--context", metavar="NAME", help="Same as in kubectl.")
@click.option(
    "-n", "--namespace", metavar="NAME", shell_complete=_namespaces, help="Same as in kubectl."
)
@click.version_option(package_name="gpushare", prog_name="gpushare")
def cli(**_: str | None) -> None:
    """Show, explain and manage shared GPUs in a Kubernetes cluster.

    These options may also follow the command.
    """
