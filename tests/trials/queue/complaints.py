"""What queues are blamed for: half-placed jobs, a head that blocks, jobs that wait for ever."""

import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from gpushare.contract import GATE_ADMISSION
from localcluster.errors import ApiError
from localcluster.wait import wait_until
from tests.trials.queue.stage import ALL_CARDS, UNITS, Described, Stage, gang

SIXTY_PERCENT: Final = ALL_CARDS * 6 // 10
QUIET_SECONDS: Final = 3.0  # in which what must not happen would have happened
GATE_REMOVED: Final = {"schedulingGates": [{"name": GATE_ADMISSION, "$patch": "delete"}]}
STRICT: Final = {"order": "fifo", "backfill": False}


@dataclass
class Complaints:
    """Each case has a namespace of its own, and begins and ends with empty GPUs."""

    stage: Stage

    def play(self) -> str:
        cases = {
            "two jobs that do not fit together": self._deadlock,
            "a large job that waits holds up nobody": self._blocked,
            "the second that fits the quota passes the first": self._second,
            "a job is released only when its least number of pods is there": self._late_members,
            "the leader is killed amid a release": self._killed,
            "a user removes the gate": self._removed,
            "without backfill a job goes first as a whole": self._strict,
        }
        self.stage.configure()
        for what, case in cases.items():
            before = len(self.stage.lost)
            begun = time.monotonic()
            case()
            outcome = "WRONG" if len(self.stage.lost) > before else "as specified"
            self.stage.say(f"  {what}: {outcome}, {time.monotonic() - begun:.1f} s")
            self.stage.clear()
        return f"{len(cases)} cases"

    def _check(self, what: str, *, holds: bool) -> None:
        if not holds:
            self.stage.lost.append(f"complaints: {what}")

    def _deadlock(self) -> None:
        """Members of two gangs of 60 % are created in turn, gated and not."""
        stage = self.stage
        for is_gated in (True, False):
            space = f"deadlock-{is_gated}".lower()
            stage.namespace(space)
            both = [gang(name, space, SIXTY_PERCENT, UNITS, is_gated=is_gated) for name in "xy"]
            stage.create(*(each for pair in zip(*both, strict=True) for each in pair))

            def one() -> str | None:
                found = sorted(stage.bound_of_gangs().values())
                return None if found == [0, SIXTY_PERCENT] else str(found)

            wait_until("one of two gangs to be whole", one, seconds=60)
            time.sleep(QUIET_SECONDS)
            self._check(f"both of two gangs have pods: {one()}", holds=one() is None)
            # The rest of the GPUs must not be kept for the gang that waits.
            rest = [Described(f"r{n}", space, UNITS) for n in range(ALL_CARDS - SIXTY_PERCENT)]
            stage.create(*rest)
            stage.wait_bound(*(each.name for each in rest))
            stage.clear()

    def _blocked(self) -> None:
        stage = self.stage
        stage.namespace("blocked")
        stage.create(Described("there", "blocked", UNITS))
        stage.wait_bound("there")
        stage.create(*gang("large", "blocked", ALL_CARDS, UNITS))
        small = [Described(f"small-{n}", "blocked", UNITS) for n in range(20)]
        stage.create(*small)
        stage.wait_bound(*(each.name for each in small))
        self._check("a gang without room has pods", holds=not stage.partial())

    def _second(self) -> None:
        """Of a quota of 16, 12 are used: 8 wait, 4 do not."""
        stage = self.stage
        stage.namespace("second", "16")
        stage.create(Described("twelve", "second", 12))
        stage.wait_bound("twelve")
        stage.create(Described("eight", "second", 8), Described("four", "second", 4))
        stage.wait_bound("four")
        self._check("eight is above the quota", holds=stage.bound() == {"twelve", "four"})

    def _late_members(self) -> None:
        stage = self.stage
        stage.namespace("late-members")
        members = gang("job", "late-members", 4, UNITS)
        for each in members[:-1]:
            stage.create(each)
            time.sleep(QUIET_SECONDS / 3)
        released = [e.name for e in stage.history.present() if not e.is_gated]
        self._check(f"released too early: {released}", holds=not released)
        stage.create(members[-1])
        stage.wait_bound(*(each.name for each in members))

    def _killed(self) -> None:
        stage = self.stage
        stage.namespace("killed")
        members = gang("job", "killed", 40, UNITS)
        leader = stage.seats.wait_leading_extender()
        stage.create(*members)

        def none() -> str | None:
            return None if any(not e.is_gated for e in stage.history.present()) else "none is"

        wait_until("the first member to be released", none, seconds=30, interval=0.001)
        stage.seats.kill(leader)
        stage.wait_bound(*(each.name for each in members))

    def _removed(self) -> None:
        stage = self.stage
        stage.namespace("removed", "0")
        stage.create(Described("pod", "removed", UNITS))
        said = remove_gate(stage, "removed", "pod")
        self._check(f"a user removed the gate: {said!r}", holds="only gpushare-extender" in said)

    def _strict(self) -> None:
        """One job takes all of the quota; the next one waits until it has ended, as a whole."""
        stage = self.stage
        stage.configure(queue=STRICT)
        stage.namespace("strict", "16")
        first, second = (gang(name, "strict", 4, units) for name, units in (("a", 4), ("b", 1)))
        stage.create(*first)
        stage.create(*second)
        stage.wait_bound(*(each.name for each in first))
        time.sleep(QUIET_SECONDS)
        bound = stage.bound()
        self._check(f"both jobs have pods: {bound}", holds=bound == {e.name for e in first})
        stage.delete(*(("strict", each.name) for each in first))
        stage.wait_bound(*(each.name for each in second))
        stage.configure()


def remove_gate(stage: Stage, namespace: str, name: str) -> str:
    """Remove the gate of a pod as administrator; return why it cannot be, or nothing."""
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    kind = "application/strategic-merge-patch+json"
    try:
        with stage.cluster.api() as api:
            api.request("PATCH", path, {"spec": GATE_REMOVED}, content_type=kind)
    except ApiError as err:
        if err.status == HTTPStatus.NOT_FOUND:
            return "it is gone"
        return str(err)
    return ""
