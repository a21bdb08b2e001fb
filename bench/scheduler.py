"""The real kube-scheduler under the shipped configuration, with one extender or another."""

import copy
import http.client
import re
import signal
import ssl
import sys
import urllib.request
from dataclasses import dataclass
from typing import Any, Final, Literal

import yaml

from bench.apiserver import labels_of
from bench.program import cpu_seconds
from bench.world import pod
from gpushare.contract import EXTENDER_PREFIX
from localcluster.cluster import Cluster
from localcluster.controlplane import API_SERVER, ETCD, HEALTH_PORTS, SCHEDULER
from localcluster.errors import ApiError
from localcluster.gpushare import ROOT, Gpushare
from localcluster.wait import wait_until

NULL_PORT: Final = 32790
READY_SECONDS: Final = 90.0
EXTENDER: Final = "extender"
_ATTEMPTS: Final = "scheduler_schedule_attempts_total{"


@dataclass(frozen=True)
class Mode:
    """Who is asked. ``percentage`` None: percentageOfNodesToScore as shipped."""

    name: str
    extender: Literal["none", "null", "all names", "shipped"]
    percentage: int | None = None

    def configuration(self, shipped: dict[str, Any]) -> dict[str, Any]:
        """The shipped configuration with another extender in it, or none."""
        found = copy.deepcopy(shipped)
        if self.percentage is not None:
            found["percentageOfNodesToScore"] = self.percentage
        if self.extender == "none":
            del found["extenders"]
        elif self.extender != "shipped":
            (extender,) = found["extenders"]
            for verb in ("prioritizeVerb", "preemptVerb", "weight"):
                extender.pop(verb, None)
            if self.extender == "all names":
                del extender["bindVerb"]
            extender["urlPrefix"] = f"http://127.0.0.1:{NULL_PORT}/null"
        return found


class Scheduler:
    """kube-scheduler and the extenders of one cluster, of which one at a time has work."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._gpushare = cluster, Gpushare(cluster)
        self._path = cluster.state.config / "kube-scheduler.yaml"
        self._shipped = yaml.safe_load(self._path.read_text(encoding="utf-8"))

    def start_extenders(self) -> None:
        self._gpushare.start_extender()
        words = [self._cluster.server, str(self._cluster.state.pki), str(NULL_PORT)]
        argv = [sys.executable, "-m", "bench.null_extender", *words]
        self._cluster.start_program("null", argv, env={"PYTHONPATH": str(ROOT)})

    def cpu_seconds(self, mode: Mode) -> dict[str, float]:
        """What each process that has a part in scheduling has used so far."""
        asked = {"shipped": EXTENDER, "null": "null", "all names": "null"}.get(mode.extender, "")
        return {
            EXTENDER if each.name == asked else each.name: cpu_seconds(each.pid)
            for each in self._cluster.processes()
            if each.name in {SCHEDULER, API_SERVER, ETCD, asked} and each.pid is not None
        }

    def use(self, mode: Mode) -> None:
        """Start kube-scheduler anew with this mode's configuration.

        Our extender is ended where it is not asked: it would follow what others do, and tell of
        every pod that was bound without a card.
        """
        self._cluster.stop(SCHEDULER, grace=5)
        text = yaml.safe_dump(mode.configuration(self._shipped), sort_keys=False)
        self._path.write_text(text, encoding="utf-8")
        self._cluster.stop(EXTENDER)
        if mode.extender == "shipped":
            self._cluster.start(EXTENDER)
            wait_until("the extender to answer", self._unready, seconds=READY_SECONDS)
        self._cluster.start(SCHEDULER)

    def _unready(self) -> str | None:
        body = {"Pod": pod("asks", 1, "none"), "NodeNames": []}
        try:
            status, found = self._gpushare.call("POST", f"{EXTENDER_PREFIX}/filter", body)
        except ApiError as err:
            return str(err)
        return None if status == http.client.OK else str(found)

    def hold(self) -> None:
        self._cluster.kill(SCHEDULER, signal.SIGSTOP)

    def go(self) -> None:
        self._cluster.kill(SCHEDULER, signal.SIGCONT)

    def attempts(self) -> dict[str, float]:
        """How many attempts to schedule a pod there have been, by result."""
        pki = self._cluster.state.pki
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # its own certificate
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        (host,) = re.findall(r"//([^:/]+)", self._cluster.server)
        address = f"https://{host}:{HEALTH_PORTS[SCHEDULER]}/metrics"
        with urllib.request.urlopen(address, context=context, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        found: dict[str, float] = {}
        for line in lines:
            if line.startswith(_ATTEMPTS):
                labels, number = labels_of(line)
                found[labels["result"]] = found.get(labels["result"], 0) + number
        return found
