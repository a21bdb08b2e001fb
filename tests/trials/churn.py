"""Churn: threads that create, bind and delete pods while programs are killed."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from localcluster.api import Api
from localcluster.cluster import Cluster
from localcluster.errors import ApiError, UsageError
from localcluster.gpushare import Gpushare
from tests.trials import pods as make
from tests.trials.records import Records

PODS = "/api/v1/namespaces/default/pods"
BIND = "/gpushare-scheduler/bind"
_EQUAL = (2501, 5002)
_MOST_PODS = 5
_PATIENCE_SECONDS = 20.0


class Churner:
    """One thread, with a few pods at a time."""

    def __init__(
        self, number: int, gpushare: Gpushare, records: Records, ended: threading.Event, seed: str
    ) -> None:
        self._number = number
        self._gpushare = gpushare
        self._records = records
        self._ended = ended
        self._rng = random.Random(f"{seed}/{number}")
        self._alive: list[str] = []
        self._made = 0
        self.did: Counter[str] = Counter()

    def run(self) -> None:
        """Go on until the event is set."""
        with self._gpushare.cluster.api() as api:
            while not self._ended.is_set():
                try:
                    self._step(api)
                except ApiError as err:
                    self.did[f"answered {err.status}"] += 1
                self._ended.wait(self._rng.uniform(0.1, 0.6))

    def _step(self, api: Api) -> None:
        if len(self._alive) >= self._rng.randint(1, _MOST_PODS):
            self._delete(api)
            return
        kind = self._rng.choices(
            ["single", "several", "midway", "beyond"], weights=[55, 20, 12, 13]
        )[0]
        name = f"c{self._number}-{self._made}"
        self._made += 1
        node = self._rng.choice(["", *self._gpushare.cluster.node_names])
        units = self._rng.choice(_EQUAL)
        match kind:
            case "single":
                described = make.single(name, units, node=node)
            case "several":
                cards = self._rng.choice([1, 1, 2])
                described = make.several(name, 600, cards, node=node)
            case "midway":
                described = make.midway(name, units, node=node)
            case _:
                described = make.beyond(name, units)
        made = api.request("POST", PODS, described)
        self._alive.append(name)
        self.did[kind] += 1
        if kind == "beyond":
            target = node or self._rng.choice(self._gpushare.cluster.node_names)
            self._bind(name, made["metadata"]["uid"], target)
        elif self._rng.random() < 0.6:
            self._wait_settled(name)

    def _bind(self, name: str, uid: str, node: str) -> None:
        body = {"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": node}
        try:
            self._gpushare.call("POST", BIND, body)
        except ApiError:
            self.did["the extender was away"] += 1

    def _wait_settled(self, name: str) -> None:
        end = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < end and not self._ended.is_set():
            seen = self._records.named(name)
            if seen is not None and seen.phase in {"Running", "Failed"}:
                return
            self._ended.wait(0.2)

    def _delete(self, api: Api) -> None:
        name = self._alive.pop(self._rng.randrange(len(self._alive)))
        if self._rng.random() < 0.3:
            self.did["force-deleted"] += 1
            api.request("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
        else:
            self.did["deleted"] += 1
            api.request("DELETE", f"{PODS}/{name}", {})


class Killer:
    """Kill one of ``victims()`` every few seconds; the cluster restarts it."""

    def __init__(
        self,
        cluster: Cluster,
        victims: Callable[[], Sequence[str]],
        ended: threading.Event,
        seed: str,
    ) -> None:
        self._cluster = cluster
        self._victims = victims
        self._ended = ended
        self._rng = random.Random(f"{seed}/killer")
        self.killed: Counter[str] = Counter()

    def run(self) -> None:
        """Go on until the event is set."""
        while not self._ended.wait(self._rng.uniform(3, 9)):
            victim = self._rng.choice(self._victims())
            try:
                self._cluster.kill(victim)
            except UsageError:
                continue  # it is down from the last time
            self.killed[victim.partition("-")[0]] += 1
