"""Turning the gates off, or removing gpushare, leaves no pod behind a gate."""

import subprocess
import time
from dataclasses import dataclass
from typing import Final

from localcluster.errors import CommandError
from localcluster.wait import wait_until
from tests.cluster.gated import command_line
from tests.trials.queue.stage import UNITS, Described, Stage

NAMESPACES: Final = "off-0", "off-1"
SECONDS: Final = 30.0


@dataclass
class Off:
    """The pods wait because their namespaces have a quota of nothing.

    It is the last part: `gpushare uninstall` removes accounts and policies.
    """

    stage: Stage
    pods: int

    def play(self) -> str:
        stage = self.stage
        stage.configure()
        for name in NAMESPACES:
            stage.namespace(name, "0")
        self._create("a")
        begun = time.monotonic()
        stage.configure(gates=False)
        turned_off = self._seconds_until_none(begun, "gates: false")
        stage.clear()
        stage.configure()
        self._create("b")
        begun = time.monotonic()
        command = command_line(stage.cluster, "uninstall", "--yes", "--no-wait")
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
        if done.returncode:
            raise CommandError(done.stderr)
        removed = self._seconds_until_none(begun, "uninstall")
        return (
            f"{self.pods} gated pods; none is left {turned_off:.1f} s after the restart of both "
            f"extenders with `gates: false` began, {removed:.1f} s after `gpushare uninstall` began"
        )

    def _create(self, prefix: str) -> None:
        made = [
            Described(f"{prefix}{number}", NAMESPACES[number % len(NAMESPACES)], UNITS)
            for number in range(self.pods)
        ]
        self.stage.create(*made)
        if (found := self._gated()) != self.pods:
            self.stage.lost.append(f"off: {found} of {self.pods} pods were gated")

    def _gated(self) -> int:
        """Count the gated pods, once the watch has shown all of them."""

        def missing() -> str | None:
            found = len(self.stage.history.present())
            return None if found >= self.pods else f"{found} pods"

        wait_until("the watch to show all pods", missing, seconds=30)
        return sum(e.is_gated for e in self.stage.history.present())

    def _seconds_until_none(self, begun: float, what: str) -> float:
        def some() -> str | None:
            number = sum(e.is_gated for e in self.stage.history.present())
            return f"{number} pods are gated" if number else None

        wait_until(f"no pod to be gated after {what}", some, seconds=3 * SECONDS)
        took = time.monotonic() - begun
        if took > SECONDS:
            self.stage.lost.append(f"off: {what} took {took:.0f} s, limit {SECONDS:.0f} s")
        return took
