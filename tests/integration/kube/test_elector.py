"""The elector over real sockets: an API server that rejects, hangs or loses responses."""

import asyncio
import signal
import sys
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web

from gpushare.clock import BootClock
from gpushare.errors import ApiError
from gpushare.kube.lease import Elector, KubeLease, Timing
from localcluster.wait import patient
from tests.integration.kube.apiserver import FrontDoor
from tests.waiting import eventually, running

pytestmark = pytest.mark.integration

TIMING = Timing(0.9, 0.6, 0.1)


class Leases:
    """One Lease with the rules of a real API server; ``fault`` affects the next requests."""

    def __init__(self) -> None:
        self.lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "l", "resourceVersion": "0"},
            "spec": {},
        }
        self.version = 0
        self.fault = ""
        self.holders: list[str] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if self.fault == "hang":
            await asyncio.Event().wait()
        if self.fault == "refuse":
            return self._problem(500)
        if request.method == "GET":
            return web.json_response(self.lease)
        sent = await request.json()
        if sent["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            return self._problem(409)
        self.write(sent)
        if self.fault == "lose":
            assert request.transport is not None
            request.transport.close()
        return web.json_response(self.lease)

    def write(self, lease: dict) -> None:
        self.version += 1
        meta = {**lease["metadata"], "resourceVersion": str(self.version)}
        self.lease = {**lease, "metadata": meta}
        self.holders.append(lease["spec"]["holderIdentity"])

    def _problem(self, code: int) -> web.Response:
        return web.json_response({"kind": "Status", "code": code}, status=code)

    @property
    def spec(self) -> dict:
        return self.lease["spec"]


# A process of its own that says again and again whether it leads, each time with the moment before.
STOPPABLE = """
import asyncio, sys
from gpushare.clock import BootClock
from gpushare.kube.client import Kube
from gpushare.kube.lease import Elector, KubeLease, Timing

async def main():
    clock = BootClock()
    async with Kube.connect(sys.argv[1]) as kube:
        timing = Timing(0.9, 0.6, 0.1)
        elector = Elector(KubeLease(kube, "ns", "l"), "stopped", "x:1", timing, clock)
        never = asyncio.Event()
        task = asyncio.create_task(elector.run(never.wait, never.wait))
        while not task.done():
            print(clock.monotonic(), int(elector.leads), flush=True)
            await asyncio.sleep(0.005)

asyncio.run(main())
"""


class Candidate:
    def __init__(self, kube, name: str) -> None:
        api = KubeLease(kube, "ns", "l")
        self.elector = Elector(api, name, f"{name}:1", TIMING, BootClock())
        self.led, self.ended, self.quiet = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.quiet.set()

    async def lead(self) -> None:
        self.led.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()

    @asynccontextmanager
    async def runs(self):
        async with running(self.elector.run(self.lead, self.quiet.wait)):
            yield self


@asynccontextmanager
async def leases(tmp_path):
    door, api = FrontDoor(), Leases()
    door.answers = [api]
    async with asyncio.timeout(patient(90)), door.connect(tmp_path) as kube:
        yield api, kube


async def test_it_leads_renews_and_releases_at_the_end(tmp_path):
    async with leases(tmp_path) as (api, kube):
        async with Candidate(kube, "a").runs() as a:
            await a.led.wait()
            assert a.elector.leads
            assert api.lease["metadata"]["annotations"]["gpushare.aliyun.com/address"] == "a:1"
            await eventually(lambda: len(api.holders) > 3)
        assert api.spec["holderIdentity"] == ""
        assert not a.elector.leads


async def test_it_releases_only_after_its_last_write(tmp_path):
    async with leases(tmp_path) as (api, kube):
        a = Candidate(kube, "a")
        a.quiet.clear()
        task = asyncio.create_task(a.elector.run(a.lead, a.quiet.wait))
        await a.led.wait()
        task.cancel()
        await a.ended.wait()
        await eventually(lambda: not a.elector.leads)
        assert api.spec["holderIdentity"] == "a"
        a.quiet.set()
        with suppress(asyncio.CancelledError):
            await task
        assert api.spec["holderIdentity"] == ""


async def test_of_two_replicas_one_leads_and_the_other_knows_its_address(tmp_path):
    async with leases(tmp_path) as (_, kube), Candidate(kube, "a").runs() as a:
        await a.led.wait()
        async with Candidate(kube, "b").runs() as b:
            await eventually(lambda: b.elector.leader is not None)
            assert b.elector.leader.address == "a:1"
            assert not b.led.is_set()
            assert a.elector.leader is None


@pytest.mark.parametrize("fault", ["hang", "refuse"])
async def test_without_renewal_it_stops_leading_before_the_lease_ends(tmp_path, fault):
    async with leases(tmp_path) as (api, kube), Candidate(kube, "a").runs() as a:
        await a.led.wait()
        api.fault = fault
        ends_at = a.elector.ends_at
        await a.ended.wait()
        assert BootClock().monotonic() < max(ends_at, a.elector.ends_at) + patient(0.2)
        assert not a.elector.leads
        api.fault = ""
        a.led.clear()
        await a.led.wait()


async def test_after_a_lost_response_it_leads_once_it_renews(tmp_path):
    async with leases(tmp_path) as (api, kube):
        api.fault = "lose"
        async with Candidate(kube, "a").runs() as a:
            await eventually(lambda: api.spec.get("holderIdentity") == "a")
            assert not a.led.is_set()
            api.fault = ""
            await a.led.wait()


async def test_another_holder_ends_leading_at_once(tmp_path):
    async with leases(tmp_path) as (api, kube), Candidate(kube, "a").runs() as a:
        await a.led.wait()
        stolen = {**api.spec, "holderIdentity": "thief", "leaseDurationSeconds": 1}
        api.write({**api.lease, "spec": stolen})
        await a.ended.wait()
        assert not a.elector.leads
        a.led.clear()
        await a.led.wait()  # it was never renewed


async def test_taking_a_lease_that_was_free_begins_a_new_term(tmp_path):
    async with leases(tmp_path) as (api, kube), Candidate(kube, "a").runs() as a:
        await a.led.wait()
        term = a.elector.term
        a.led.clear()
        # Somebody led meanwhile and has let go of it, all between two looks.
        meta = {**api.lease["metadata"], "annotations": {"gpushare.aliyun.com/address": ""}}
        spec = {**api.spec, "holderIdentity": ""}
        api.write({**api.lease, "metadata": meta, "spec": spec})
        await a.ended.wait()
        await a.led.wait()
        assert a.elector.term != term


async def test_an_error_while_leading_ends_the_run(tmp_path):
    async def broken() -> None:
        raise RuntimeError("broken")

    async with leases(tmp_path) as (_, kube):
        a = Candidate(kube, "a")
        with pytest.raises(RuntimeError, match="broken"):
            await a.elector.run(broken, a.quiet.wait)


async def test_a_process_that_was_suspended_past_the_lease_never_leads(tmp_path):
    async with leases(tmp_path) as (_, kube):
        words = (sys.executable, "-c", STOPPABLE, str(tmp_path / "kubeconfig"))
        process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
        try:
            while not (await process.stdout.readline()).endswith(b" 1\n"):
                pass
            process.send_signal(signal.SIGSTOP)
            async with Candidate(kube, "b").runs() as b:
                await b.led.wait()
                went_on = BootClock().monotonic()
                process.send_signal(signal.SIGCONT)
                said = []
                while len(said) < 50:
                    moment, leads = (await process.stdout.readline()).split()
                    if float(moment) > went_on:
                        said.append(leads)
                assert set(said) == {b"0"}
        finally:
            process.kill()
            await process.wait()


async def test_an_unavailable_lease_is_requested_no_more_often_than_configured():
    clock, tries = BootClock(), []

    class Refusing:
        async def read(self, *, seconds):
            tries.append(clock.monotonic())
            if len(tries) == 4:
                done.set()
            raise ApiError("no right to", code=403)

        create = write = None

    done = asyncio.Event()
    elector = Elector(Refusing(), "a", "a:1", TIMING, clock)
    task = asyncio.create_task(elector.run(done.wait, done.wait))
    async with asyncio.timeout(patient(10)):
        await done.wait()
    task.cancel()
    assert tries[-1] - tries[0] >= 3 * TIMING.retry


@pytest.mark.parametrize("holder", ["", "b"])
async def test_a_lease_with_a_changed_holder_is_taken_only_after_the_last_term(tmp_path, holder):
    async with leases(tmp_path) as (api, kube), Candidate(kube, "a").runs() as a:
        await a.led.wait()
        async with Candidate(kube, "b").runs() as b:
            await eventually(lambda: b.elector.leader is not None)
            ends_at = a.elector.ends_at  # what a began may last until then
            api.write({**api.lease, "spec": {**api.spec, "holderIdentity": holder}})
            await a.ended.wait()
            await eventually(lambda: a.elector.leads or b.elector.leads)
            assert BootClock().monotonic() > ends_at
