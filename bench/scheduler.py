"""The real kube-scheduler under the shipped configuration, with one extender or another."""

import copy
import re
import signal
import ssl
import sys
import urllib.request
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import yaml

from bench.apiserver import labels_of
from bench.program import cpu_seconds, post
from bench.replicas import tls_in
from bench.world import pod
from gpushare.contract import EXTENDER_PORT, EXTENDER_PREFIX
from localcluster.cluster import Cluster
from localcluster.controlplane import API_SERVER, ETCD, HEALTH_PORTS, SCHEDULER
from localcluster.gpushare import NAMESPACE, ROOT
from localcluster.wait import wait_until

NULL_PORT: Final = 32750
RECORDING_PORT: Final = 32749  # bench/waiting_pods/recording.py
RECORDING_PREFIX: Final = "/recording"
READY_SECONDS: Final = 90.0
EXTENDER: Final = "extender"  # on kube-scheduler's own loopback
LEADER: Final = "leader"  # the replica elsewhere that decides where the one above hands on
REPLICA_PORT: Final = 29767
_HOSTS: Final = {EXTENDER: "127.0.0.1", LEADER: "127.0.0.2"}
_SHIPPED: Final = ROOT / "daemonset" / "base" / "configuration" / "extender.yaml"
_NULL: Final = "null"
_ATTEMPTS: Final = "scheduler_schedule_attempts_total"


@dataclass(frozen=True)
class Mode:
    """Which extender is called. ``percentage`` None: percentageOfNodesToScore as shipped."""

    name: str
    extender: Literal["none", "null", "few", "all names", "recording", "shipped", "forwarded"]
    percentage: int | None = None

    @property
    def programs(self) -> tuple[str, ...]:
        """Return the programs that run as extenders, in the order of their start."""
        if self.extender == "forwarded":
            return LEADER, EXTENDER
        ours = {"none": (), "recording": (), "shipped": (EXTENDER,)}
        return ours.get(self.extender, (_NULL,))

    def configuration(self, shipped: dict[str, Any]) -> dict[str, Any]:
        found = copy.deepcopy(shipped)
        if self.percentage is not None:
            found["percentageOfNodesToScore"] = self.percentage
        if self.extender == "none":
            del found["extenders"]
        elif self.extender == "recording":
            (extender,) = found["extenders"]
            del extender["prioritizeVerb"]
            extender["urlPrefix"] = f"http://127.0.0.1:{RECORDING_PORT}{RECORDING_PREFIX}"
        elif _NULL in self.programs:
            (extender,) = found["extenders"]
            for verb in ("prioritizeVerb", "preemptVerb", "weight"):
                extender.pop(verb, None)
            if self.extender == "all names":
                del extender["bindVerb"]
            prefix = "few" if self.extender == "few" else _NULL
            extender["urlPrefix"] = f"http://127.0.0.1:{NULL_PORT}/{prefix}"
        return found


class Scheduler:
    """kube-scheduler and the extenders of one cluster; one extender at a time is used."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._path = cluster.state.config / "kube-scheduler.yaml"
        self._shipped = yaml.safe_load(self._path.read_text(encoding="utf-8"))
        self._replicas: list[str] = []

    def start_extenders(self, steps: Path | None = None) -> None:
        """Start the null extender, and two replicas of gpushare's, configured as in the base.

        The one that kube-scheduler calls writes its steps to the file ``steps`` when it ends.
        """
        state = self._cluster.state
        folder = state.pki / "replicas"
        folder.mkdir()
        tls = msgspec.to_builtins(tls_in(folder))
        account = self._cluster.service_account_kubeconfig(NAMESPACE, "gpushare-extender")
        for name, host in _HOSTS.items():
            found = yaml.safe_load(_SHIPPED.read_text(encoding="utf-8"))
            found |= {
                "memoryUnit": "MiB",
                "kubeconfig": str(account),
                "listen": {"deciding": {"host": host, "port": EXTENDER_PORT}},
            }
            found["leaderElection"] |= {"address": {"host": host, "port": REPLICA_PORT}, "tls": tls}
            path = state.path / f"{name}.yaml"
            path.write_text(yaml.safe_dump(found), encoding="utf-8")
            if steps is not None and name == EXTENDER:
                self._start(name, "bench.traced_extender", str(steps), f"--config={path}")
            else:
                self._start(name, "extender", f"--config={path}")
            self._replicas.append(name)
        self._start(_NULL, "bench.null_extender", self._cluster.server, str(state.pki), NULL_PORT)

    def _start(self, name: str, module: str, *words: object) -> None:
        argv = [sys.executable, "-m", module, *map(str, words)]
        self._cluster.start_program(name, argv, env={"PYTHONPATH": str(ROOT)})

    def cpu_seconds(self, mode: Mode) -> dict[str, float]:
        """Return the CPU time that each process of the scheduler side has used so far."""
        counted = {SCHEDULER, API_SERVER, ETCD, *mode.programs}
        return {
            EXTENDER if each.name == _NULL else each.name: cpu_seconds(each.pid)
            for each in self._cluster.processes()
            if each.name in counted and each.pid is not None
        }

    def use(self, mode: Mode) -> None:
        """Restart kube-scheduler with this mode's configuration.

        gpushare's replicas are stopped in modes that do not use them: they would watch what others
        do, and report every pod that was bound without a card. The first one to start leads.
        """
        self._cluster.stop(SCHEDULER, grace=5)
        text = yaml.safe_dump(mode.configuration(self._shipped), sort_keys=False)
        self._path.write_text(text, encoding="utf-8")
        for name in self._replicas:
            self._cluster.stop(name)
        for name in mode.programs:
            if name in _HOSTS:
                self._cluster.start(name)
                wait_until(f"the {name} to answer", partial(_unready, name), seconds=READY_SECONDS)
        self._cluster.start(SCHEDULER)

    def hold(self) -> None:
        self._cluster.kill(SCHEDULER, signal.SIGSTOP)

    def go(self) -> None:
        self._cluster.kill(SCHEDULER, signal.SIGCONT)

    def attempts(self) -> dict[str, float]:
        """Return how many attempts kube-scheduler has made, by result."""
        found: dict[str, float] = {}
        for labels, number in self.metric(_ATTEMPTS):
            found[labels["result"]] = found.get(labels["result"], 0) + number
        return found

    def metric(self, name: str) -> list[tuple[dict[str, str], float]]:
        """Return labels and value of each series of one of kube-scheduler's metrics."""
        pki = self._cluster.state.pki
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # its own certificate
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        (host,) = re.findall(r"//([^:/]+)", self._cluster.server)
        address = f"https://{host}:{HEALTH_PORTS[SCHEDULER]}/metrics"
        with urllib.request.urlopen(address, context=context, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return [labels_of(line) for line in lines if line.startswith(f"{name}{{")]


def _unready(name: str) -> str | None:
    body = msgspec.json.encode({"Pod": pod("asks", 1, "none"), "NodeNames": []})
    try:
        post(f"http://{_HOSTS[name]}:{EXTENDER_PORT}{EXTENDER_PREFIX}/filter", body)
    except OSError as err:  # urllib.error.URLError is one, also for a 503
        return str(err)
    return None
