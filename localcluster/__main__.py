"""The command: `python -m localcluster up|down|image|status|logs|kubeconfig|kubectl|tool`."""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from localcluster import gpushare, teardown
from localcluster.cluster import Cluster
from localcluster.errors import ApiError, UsageError
from localcluster.host import check_host
from localcluster.imagebuild import gpushare_image
from localcluster.interrupts import run_command, undisturbed
from localcluster.nvml import CardSpec
from localcluster.prepare import prepare
from localcluster.specs import NodeSpec, PaperNode
from localcluster.state import DEFAULT_NAME, StateFolder, state_root
from localcluster.tools import tool, tools
from localcluster.versions import DEFAULT, Features, version, versions

_MOST_DIGITS = 6


def main() -> int:
    """Run one command; return its exit code."""
    arguments = _parser().parse_args()
    try:
        return run_command("localcluster", lambda: _run(arguments))
    except BrokenPipeError:
        return 128 + signal.SIGPIPE


def _run(arguments: argparse.Namespace) -> int:
    name: str = arguments.name
    match arguments.command:
        case "up":
            _up(name, arguments)
        case "down":
            for each in _all() if arguments.all else [name]:
                _down(each)
        case "image":
            print(gpushare_image(lambda line: print(line, file=sys.stderr, flush=True)))
        case "status":
            _status(Cluster.attach(name))
        case "logs":
            path = Cluster.attach(name).log_path(arguments.process)
            follow = ["-F"] if arguments.follow else []
            os.execvp("tail", ["tail", "-n", str(arguments.lines), *follow, str(path)])  # noqa: S606 -- no shell is wanted
        case "kubeconfig":
            print(Cluster.attach(name).kubeconfig)
        case "kubectl":
            cluster = Cluster.attach(name)
            os.environ["KUBECONFIG"] = str(cluster.kubeconfig)
            _become(cluster.binaries / "kubectl", arguments.arguments)
        case "tool":
            binary = tool(arguments.tool, lambda line: print(line, file=sys.stderr, flush=True))
            _become(binary, arguments.arguments)
        case unknown:
            raise UsageError(f"no such command: {unknown}")
    return 0


def _become(binary: Path, arguments: list[str]) -> None:
    given = arguments[1:] if arguments[:1] == ["--"] else arguments
    os.execv(binary, [binary.name, *given])  # noqa: S606 -- no shell is wanted


def _up(name: str, arguments: argparse.Namespace) -> None:
    labels = dict(_label(each) for each in arguments.label)
    sizes, scheduler_config = arguments.cards, arguments.scheduler_config
    if arguments.gpushare:
        labels = {**gpushare.LABELS, **labels}
        sizes = sizes or f"{gpushare.CARD_MIB},{gpushare.CARD_MIB}"
        scheduler_config = scheduler_config or gpushare.SCHEDULER_CONFIG
    nodes = [
        NodeSpec(f"n{index}", labels, _cards(f"n{index}", sizes))
        for index in range(1, arguments.nodes + 1)
    ]
    paper = [PaperNode(f"paper{index}") for index in range(1, arguments.paper + 1)]
    archives: list[Path] = []
    if arguments.gpushare:
        nodes.append(gpushare.control_plane_node())
        archives.append(prepare(_say, version(arguments.version)))
    cluster = Cluster.up(
        nodes,
        paper,
        name=name,
        version=version(arguments.version),
        features=Features(_switches(arguments.feature_gates), _switches(arguments.runtime_config)),
        scheduler_config=scheduler_config,
        archives=archives,
        progress=_say,
    )
    if arguments.gpushare:
        try:
            gpushare.Gpushare(cluster).install()
        except BaseException:
            cluster.down()
            raise
        print("gpushare is on every node; when the last line here was typed too, try:")
        print("\n".join(f"  {each}" for each in first_steps(name)))
    print(f"export KUBECONFIG={cluster.kubeconfig}")


def first_steps(name: str) -> tuple[str, str]:
    """Return the commands to try first; they run the programs of this checkout."""
    python = Path(os.path.relpath(sys.executable))
    named = "" if name == DEFAULT_NAME else f" --name {name}"
    sample = os.path.relpath(gpushare.ROOT / "daemonset/samples/local.yaml")
    return (
        f"{python} -m localcluster kubectl{named} -- apply -f {sample}",
        f"{python.parent / 'gpushare'} inspect",
    )


def _say(line: str) -> None:
    print(f"{line}\n", end="", flush=True)  # at once: two threads say lines


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise UsageError(f"{text!r} is no label; wanted KEY=VALUE")
    return key, value


def _words(text: str) -> list[str]:
    return [each for each in text.split(",") if each]


def _switches(text: str) -> dict[str, bool]:
    found = {}
    for each in _words(text):
        name, _, on = each.partition("=")
        if on not in ("true", "false"):
            raise UsageError(f"{each!r} does not say on or off; wanted NAME=true or NAME=false")
        found[name] = on == "true"
    return found


def _cards(node: str, sizes: str) -> tuple[CardSpec, ...]:
    found = _words(sizes)
    if not all(each.isascii() and each.isdigit() and int(each) > 0 for each in found):
        raise UsageError(f"{sizes!r} are no GPUs; write the MiB of each, such as 16276,16276")
    return tuple(
        CardSpec(f"GPU-{node}-{index}", mem_mib=int(size)) for index, size in enumerate(found)
    )


def _all() -> list[str]:
    root = state_root()
    return sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []


def _down(name: str) -> None:
    state = StateFolder.of(name)
    check_host()
    begun = time.monotonic()
    with undisturbed():
        removed = teardown.down(state)
    what = ", ".join(removed) if removed else "nothing, for nothing was there"
    print(f"{name}: removed {what} ({time.monotonic() - begun:.1f} s)")


def _status(cluster: Cluster) -> None:
    row = "{:<28} {:>8} {:>8} {:>9}  {}".format
    print(row("NAME", "PID", "RESTARTS", "UPTIME", "STATE"))
    for each in cluster.processes():
        state = "running" if each.pid else ("restarting" if each.wanted else "stopped")
        if each.pid is None and each.last_exit is not None:
            state += f" (last exit status {each.last_exit})"
        uptime = "-" if each.uptime is None else f"{each.uptime:.0f}s"
        print(row(each.name, each.pid or "-", each.restarts, uptime, state))
    try:
        readiness = cluster.node_readiness()
    except ApiError as problem:
        print(f"nodes unknown: {problem}")
        return
    for node, ready in sorted(readiness.items()):
        print(f"node {node}: {'Ready' if ready == 'True' else f'not Ready ({ready})'}")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise argparse.ArgumentTypeError(f"{text!r} is no number; wanted 0, 1, 2 ...")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m localcluster", description=__doc__)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--name", default=DEFAULT_NAME, help="which cluster (%(default)s)")
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text, parents=[common])

    up = command("up", "build what is missing, start a cluster, leave it running")
    up.add_argument("--nodes", type=_count, default=1, help="real nodes, n1, n2 ... (%(default)s)")
    up.add_argument("--paper", type=_count, default=0, help="paper nodes (%(default)s)")
    up.add_argument("--cards", default="", metavar="MIB,...", help="GPUs of each real node")
    up.add_argument(
        "--version",
        default=str(DEFAULT),
        choices=[str(each) for each in versions()],
        help="of Kubernetes (%(default)s)",
    )
    up.add_argument("--feature-gates", default="", metavar="NAME=true,...", help="of Kubernetes")
    up.add_argument("--runtime-config", default="", metavar="API=true,...", help="what is served")
    up.add_argument("--label", action="append", default=[], metavar="KEY=VALUE")
    up.add_argument("--gpushare", action="store_true", help="with gpushare on it, in MiB")
    up.add_argument("--scheduler-config", type=Path, metavar="FILE")
    down = command("down", "remove everything that belongs to a cluster")
    down.add_argument("--all", action="store_true", help="that there is, whatever its name")
    command("image", "build gpushare's image for local clusters; print where its archive is")
    command("status", "show each process and node")
    logs = command("logs", "show the log of a component or program")
    logs.add_argument("process", metavar="NAME")
    logs.add_argument("-f", "--follow", action="store_true")
    logs.add_argument("-n", "--lines", type=_count, default=100)
    command("kubeconfig", "print the path of the administrator's kubeconfig")
    kubectl = command("kubectl", "run the cluster's kubectl as administrator")
    kubectl.add_argument("arguments", nargs=argparse.REMAINDER, metavar="-- ARGUMENTS")
    other = command("tool", "run a tool that is no part of a cluster, built when first asked for")
    other.add_argument("tool", choices=sorted(tools()))
    other.add_argument("arguments", nargs=argparse.REMAINDER, metavar="-- ARGUMENTS")
    return parser


if __name__ == "__main__":
    sys.exit(main())
