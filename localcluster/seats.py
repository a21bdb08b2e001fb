"""Control-plane seats: network namespaces, each with its own kube-scheduler and extender.

They stand for a control plane of several machines: every kube-scheduler calls the extender on its
own loopback. The cluster's own kube-scheduler, on the host, is stopped meanwhile.
"""

import json
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from localcluster import network
from localcluster.cluster import Cluster
from localcluster.control import base_environment
from localcluster.controlplane import SCHEDULER
from localcluster.errors import ApiError, CommandError, UsageError
from localcluster.network import API_PORT
from localcluster.pki import Authority
from localcluster.run import run
from localcluster.wait import wait_until

MOST_SEATS: Final = 9
PORT: Final = 29766
REPLICA_PORT: Final = 29767
REPLICA_NAME: Final = "gpushare-extender"
NAMESPACE: Final = "gpushare-system"
_ROOT: Final = Path(__file__).parents[1]
_SCHEDULER_PORT: Final = 10259
# Shorter than the defaults (15, 10 and 2 s), so that a trial need not wait.
_ELECTION: Final = {
    "leaderElect": True,
    "leaseDuration": "6s",
    "renewDeadline": "4s",
    "retryPeriod": "1s",
}
_ACQUIRED: Final = re.compile(r"^I\d{4} (\S+) .*successfully acquired lease", re.MULTILINE)
_ASK: Final = """\
import sys, urllib.request, urllib.error
try:
    answer = urllib.request.urlopen(sys.argv[1], timeout=60)
except urllib.error.HTTPError as err:
    answer = err
sys.stdout.write(f"{answer.status} {answer.read().decode()}")
"""

Program = Literal["extender", "kube-scheduler"]


@dataclass(frozen=True)
class Seats:
    """The seats s1, s2, ... of a cluster that is up; ``prepare`` creates them."""

    cluster: Cluster
    names: tuple[str, ...]

    @classmethod
    def prepare(
        cls, cluster: Cluster, count: int, scheduler_config: Path, *, unit: str = "GiB"
    ) -> "Seats":
        """Create the seats and the files of their programs, and stop the host's scheduler.

        It starts no program. The extender's ServiceAccount must exist. Raises UsageError for too
        many.
        """
        if not 1 <= count <= MOST_SEATS:
            raise UsageError(f"{count} seats asked; between 1 and {MOST_SEATS} can be")
        made = cls(cluster, tuple(f"s{number}" for number in range(1, count + 1)))
        cluster.stop(SCHEDULER)
        document = yaml.safe_load(scheduler_config.read_text(encoding="utf-8"))
        kubeconfig = cluster.state.kubeconfigs / f"{SCHEDULER}.kubeconfig"
        document["clientConnection"] = {
            **(document.get("clientConnection") or {}),
            "kubeconfig": str(kubeconfig),
        }
        document["leaderElection"] = _ELECTION
        made._write("kube-scheduler-seats.yaml", document)
        folder = cluster.state.pki / "seats"
        folder.mkdir(exist_ok=True)
        Authority(folder).sign("replica", user=REPLICA_NAME, hosts=(REPLICA_NAME,))
        account = cluster.service_account_kubeconfig(NAMESPACE, "gpushare-extender")
        for number, name in enumerate(made.names, start=1):
            pin = made._pin(name)
            pin.touch()
            run(["unshare", f"--net={pin}", "true"])
            network.join_seat(cluster.state, cluster.network, number, pin)
            configuration = {"memoryUnit": unit, **made._configuration(name, account, folder)}
            made._write(f"extender-{name}.yaml", configuration)
        return made

    def remove(self) -> None:
        """Stop the seats' programs, remove the seats, and start the host's scheduler again."""
        there = {each.name for each in self.cluster.processes()}
        for number, seat in enumerate(self.names, start=1):
            for program in ("kube-scheduler", "extender"):
                if f"{program}-{seat}" in there:
                    self.go_on(seat, program)
                    self.cluster.stop(f"{program}-{seat}")
            network.leave_seat(self.cluster.state, number)
            run(["umount", "-n", "-l", self._pin(seat)])
        self.cluster.start(SCHEDULER)

    def address(self, seat: str) -> str:
        """Return the address of a seat, which all of the cluster can reach."""
        return self.cluster.network.seat(self.names.index(seat) + 1)

    def start_extender(self, seat: str) -> None:
        """Start a seat's extender; it is restarted whenever it ends."""
        config = self.cluster.state.config / f"extender-{seat}.yaml"
        argv = [sys.executable, "-m", "extender", f"--config={config}"]
        env = {"PYTHONPATH": str(_ROOT), "PYTHONUNBUFFERED": "1"}
        self._start(seat, "extender", argv, env)

    def start_scheduler(self, seat: str) -> None:
        """Start a seat's kube-scheduler, which competes for the lease that all of them share."""
        state = self.cluster.state
        kubeconfig = state.kubeconfigs / f"{SCHEDULER}.kubeconfig"
        argv = [
            str(self.cluster.binaries / SCHEDULER),
            f"--config={state.config / 'kube-scheduler-seats.yaml'}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            f"--bind-address={self.address(seat)}",
            f"--secure-port={_SCHEDULER_PORT}",
            *self.cluster.features.gate_flags,
        ]
        self._start(seat, "kube-scheduler", argv, {})

    def kill(self, seat: str, program: Program = "extender") -> None:
        """Kill a program at once; the supervisor starts it again."""
        self.cluster.kill(f"{program}-{seat}")

    def pause(self, seat: str, program: Program = "extender") -> None:
        """Suspend a program until ``go_on``."""
        self.cluster.kill(f"{program}-{seat}", signal.SIGSTOP)

    def go_on(self, seat: str, program: Program = "extender") -> None:
        """Resume a suspended program."""
        self.cluster.kill(f"{program}-{seat}", signal.SIGCONT)

    def restart(self, seat: str, program: Program = "extender") -> None:
        """Stop a program and start it again once it has ended, as a rolling update does."""
        self.cluster.stop(f"{program}-{seat}")
        self.cluster.start(f"{program}-{seat}")

    def cut_off(self, seat: str) -> None:
        """Drop all packets from a seat to the API server until ``join_again``."""
        host = self.cluster.network.host
        rule = f"ip daddr {host} tcp dport {API_PORT} drop"
        chain = f"chain out {{ type filter hook output priority 0; {rule}; }}"
        text = f"table ip cut {{\n  {chain}\n}}\n"
        run([*self.enter(seat), "nft", "-f", "-"], stdin=text)

    def join_again(self, seat: str) -> None:
        """Let a seat reach the API server again."""
        run([*self.enter(seat), "nft", "delete", "table", "ip", "cut"])

    def ask(self, seat: str, path: str) -> tuple[int, str]:
        """Return status and text of a page of a seat's extender; ApiError if it does not answer."""
        url = f"http://127.0.0.1:{PORT}{path}"
        try:
            text = run([*self.enter(seat), sys.executable, "-c", _ASK, url], seconds=70)
        except CommandError as problem:
            raise ApiError(0, f"the extender of {seat} does not answer: {problem}") from problem
        status, _, body = text.partition(" ")
        return int(status), body

    def inspect(self, seat: str) -> list[dict[str, Any]]:
        """Return every node's cards and shares as a seat's extender counts them."""
        status, text = self.ask(seat, "/gpushare-scheduler/inspect")
        if not text.startswith("{"):
            raise ApiError(status, f"inspect at {seat}: {text}")
        nodes: list[dict[str, Any]] = json.loads(text)["nodes"]
        return nodes

    def metric(self, seat: str, name: str) -> float:
        """Return a metric of a seat's extender, summed over its labels."""
        _, text = self.ask(seat, "/metrics")
        found = re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, found))

    def leading_extender(self) -> str | None:
        """Return the seat whose extender is the leader, if one is."""
        for seat in self.names:
            try:
                if self.metric(seat, "gpushare_extender_leader"):
                    return seat
            except ApiError:
                continue
        return None

    def wait_leading_extender(self) -> str:
        """Return the seat whose extender is the leader, waiting for one."""
        found: list[str] = []

        def missing() -> str | None:
            seat = self.leading_extender()
            found[:] = [seat] if seat else []
            return None if found else "none does"

        wait_until("an extender to decide", missing, seconds=40, interval=0.2)
        return found[0]

    def leading_scheduler(self) -> str:
        """Return the seat whose kube-scheduler was the last to acquire the lease."""
        last = {}
        for seat in self.names:
            log = self.cluster.state.log(f"{SCHEDULER}-{seat}")
            found = _ACQUIRED.findall(log.read_text(errors="replace")) if log.exists() else []
            last[seat] = found[-1] if found else ""
        return max(last, key=lambda seat: last[seat])

    def _configuration(self, seat: str, kubeconfig: Path, pki: Path) -> dict[str, Any]:
        return {
            "kubeconfig": str(kubeconfig),
            "listen": {"deciding": {"host": "127.0.0.1", "port": PORT}},
            "leaderElection": {
                "address": {"host": self.address(seat), "port": REPLICA_PORT},
                "tls": {
                    "certificate": str(pki / "replica.crt"),
                    "key": str(pki / "replica.key"),
                    "authority": str(pki / "ca.crt"),
                    "allowedNames": [REPLICA_NAME],
                },
            },
        }

    def _start(
        self, seat: str, program: Program, argv: Sequence[str], env: Mapping[str, str]
    ) -> None:
        command = [*self.enter(seat), *argv]
        environment = {**base_environment(self.cluster.state), **env}
        self.cluster.start_program(f"{program}-{seat}", command, env=environment)

    def _pin(self, seat: str) -> Path:
        return self.cluster.state.namespaces / f"{seat}.seat"

    def enter(self, seat: str) -> list[str]:
        """Return the prefix of a command that is to run in a seat's network."""
        return ["nsenter", f"--net={self._pin(seat)}", "--"]

    def _write(self, name: str, document: dict[str, Any]) -> None:
        text = yaml.safe_dump(document, sort_keys=False)
        (self.cluster.state.config / name).write_text(text, encoding="utf-8")
