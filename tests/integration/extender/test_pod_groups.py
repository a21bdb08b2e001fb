"""The index of gangs follows PodGroups where they are served, and says why where they are not."""

import asyncio
import logging
from contextlib import asynccontextmanager

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from extender.watch import pod_groups
from extender.watch.pod_groups import PodGroupWatch
from gpushare.groups import reasons
from gpushare.groups.index import Groups
from gpushare.groups.model import Source
from gpushare.groups.pod_groups import API_GROUPS
from gpushare.kube.client import Kube
from tests.gangs import member
from tests.integration.kube.apiserver import write_kubeconfig
from tests.waiting import eventually, running

pytestmark = pytest.mark.integration

NATIVE, COSCHEDULING = (API_GROUPS[each][0] for each in (Source.NATIVE, Source.POD_GROUP))


class PodGroupServer:
    """A double of the API server that serves PodGroups of one API group and nothing else.

    ``versions`` are those that the API group has, ``serving`` those of them with PodGroups.
    """

    def __init__(self, api_group):
        self.path = f"/apis/{api_group}"
        self.versions, self.serving = ["v1"], []
        self.refusal = None
        self.specs, self.asked = {}, []
        self._version = 1
        self._watches = []
        self.app = web.Application()
        self.app.router.add_get(self.path, self._group)
        self.app.router.add_get(self.path + "/{version}", self._resources)
        self.app.router.add_get(self.path + "/{version}/podgroups", self._pod_groups)

    @asynccontextmanager
    async def watched(self, folder, source):
        """Run a watch of this API server; yield its index, with one pod of each source."""
        async with self.watch_of(folder, source) as (_, groups):
            yield groups

    @asynccontextmanager
    async def watch_of(self, folder, source):
        groups = Groups()
        for each in Source:
            groups.update(member(each.value, source=each))
        async with TestServer(self.app, shutdown_timeout=0) as server:
            path = write_kubeconfig(folder, str(server.make_url("")))
            async with Kube.connect(path) as kube:
                watch = PodGroupWatch(kube, groups, source)
                async with running(watch.run()):
                    yield watch, groups
                await self.cut()

    async def put(self, name, spec):
        self._version += 1
        kind = "MODIFIED" if name in self.specs else "ADDED"
        self.specs[name] = spec
        await self._tell(kind, name, spec)

    async def delete(self, name):
        self._version += 1
        await self._tell("DELETED", name, self.specs.pop(name))

    async def cut(self):
        """End all watches, as the API server does."""
        for watch in self._watches:
            watch.put_nowait(None)
        self._watches = []

    async def _group(self, request):
        self.asked.append(request.path)
        if self.refusal is not None:
            return self._refused()
        if not self.versions:
            return web.json_response({"code": 404, "reason": "NotFound"}, status=404)
        return web.json_response({"versions": [{"version": each} for each in self.versions]})

    async def _resources(self, request):
        names = ["priorityclasses"]
        if request.match_info["version"] in self.serving:
            names += ["podgroups", "podgroups/status"]
        return web.json_response({"resources": [{"name": each} for each in names]})

    async def _pod_groups(self, request):
        self.asked.append(request.path)
        if request.match_info["version"] not in self.serving:
            return web.json_response({"code": 404, "reason": "NotFound"}, status=404)
        if self.refusal is not None:
            return self._refused()
        if "watch" not in request.query:
            items = [self._object(*each) for each in self.specs.items()]
            meta = {"resourceVersion": str(self._version)}
            return web.json_response({"metadata": meta, "items": items})
        response, events = web.StreamResponse(), asyncio.Queue()
        self._watches.append(events)
        await response.prepare(request)
        while (event := await events.get()) is not None:
            await response.write(event)
        return response

    def _refused(self):
        body = {"code": self.refusal, "reason": "Refused", "message": "no"}
        return web.json_response(body, status=self.refusal)

    def _object(self, name, spec):
        meta = {"name": name, "namespace": "default", "resourceVersion": str(self._version)}
        return {"metadata": meta, "spec": spec}

    async def _tell(self, kind, name, spec):
        event = {"type": kind, "object": self._object(name, spec)}
        for watch in self._watches:
            watch.put_nowait(msgspec.json.encode(event) + b"\n")


@pytest.fixture
def coscheduling():
    made = PodGroupServer(COSCHEDULING)
    made.versions = made.serving = ["v1alpha1"]
    return made


@pytest.fixture
def soon(monkeypatch):
    """Look every 50 ms instead of every minute."""
    monkeypatch.setattr(pod_groups, "EVERY_SECONDS", 0.05)


def of(groups, source):
    return groups.of(f"default-{source.value}")


async def until(groups, source, *, problem=None, minimum=1):
    def is_so():
        group = of(groups, source)
        return (group.problem, group.minimum) == (problem, minimum)

    await eventually(is_so, 10)


async def test_pod_groups_are_listed_and_followed(coscheduling, tmp_path):
    await coscheduling.put("g", {"minMember": 3, "scheduleTimeoutSeconds": 60})
    async with coscheduling.watched(tmp_path, Source.POD_GROUP) as groups:
        await until(groups, Source.POD_GROUP, minimum=3)
        assert of(groups, Source.POD_GROUP).complete_seconds == 60
        await eventually(lambda: coscheduling._watches)
        await coscheduling.put("g", {"minMember": 5})
        await until(groups, Source.POD_GROUP, minimum=5)
        await coscheduling.put("g", {"minMember": 0})
        await until(groups, Source.POD_GROUP, problem=reasons.WRONG_POD_GROUP)
        await coscheduling.delete("g")
        await until(groups, Source.POD_GROUP, problem=reasons.NO_POD_GROUP)
        await coscheduling.put("g", {"minMember": 2})
        await until(groups, Source.POD_GROUP, minimum=2)
    assert of(groups, Source.NATIVE).problem == reasons.NOT_LISTED


@pytest.mark.parametrize(
    ("serving", "expected"),
    [
        (["v1alpha2"], "v1alpha2"),
        (["v1beta1", "v1alpha3"], "v1beta1"),
        (["v1alpha3", "v9"], "v1alpha3"),
    ],
)
async def test_the_newest_known_version_of_the_native_kind_is_read(tmp_path, serving, expected):
    server = PodGroupServer(NATIVE)
    server.versions, server.serving = ["v1", "v1beta1", *serving], serving
    await server.put("g", {"schedulingPolicy": {"gang": {"minCount": 4}}, "priority": -9})
    async with server.watched(tmp_path, Source.NATIVE) as groups:
        await until(groups, Source.NATIVE, minimum=4)
        assert of(groups, Source.NATIVE).priority == -9
    assert {path.split("/")[3] for path in server.asked if "podgroups" in path} == {expected}


@pytest.mark.parametrize("versions", [[], ["v1"], ["v2", "v1alpha1"]])
async def test_a_kind_that_is_not_served_is_a_problem_of_its_gangs_only(tmp_path, versions, caplog):
    caplog.set_level(logging.INFO)
    server = PodGroupServer(COSCHEDULING)
    server.versions = versions
    async with server.watched(tmp_path, Source.POD_GROUP) as groups:
        await until(groups, Source.POD_GROUP, problem=reasons.NOT_SERVED)
        assert of(groups, Source.LABELS).problem is None
    assert not any("podgroups" in path for path in server.asked)


async def test_a_kind_that_comes_goes_and_returns_is_followed(coscheduling, tmp_path, soon):
    coscheduling.versions = []
    await coscheduling.put("g", {"minMember": 3})
    async with coscheduling.watched(tmp_path, Source.POD_GROUP) as groups:
        for _ in range(2):
            await until(groups, Source.POD_GROUP, problem=reasons.NOT_SERVED)
            coscheduling.versions = coscheduling.serving = ["v1alpha1"]
            await until(groups, Source.POD_GROUP, minimum=3)
            await eventually(lambda: coscheduling._watches)
            coscheduling.versions = coscheduling.serving = []
            await coscheduling.cut()


async def test_without_the_right_gangs_say_so_until_it_is_given(
    coscheduling, tmp_path, soon, caplog
):
    caplog.set_level(logging.INFO)
    await coscheduling.put("g", {"minMember": 3})
    coscheduling.refusal = 403
    async with coscheduling.watched(tmp_path, Source.POD_GROUP) as groups:
        await until(groups, Source.POD_GROUP, problem=reasons.NOT_READABLE)
        await eventually(lambda: len(coscheduling.asked) > 5)
        said = [record for record in caplog.records if record.message == "PodGroups"]
        assert [record.levelname for record in said].count("WARNING") == 1
        coscheduling.refusal = None
        await until(groups, Source.POD_GROUP, minimum=3)


async def test_what_was_read_remains_known_without_the_right_and_while_nobody_answers(
    coscheduling, tmp_path, soon
):
    await coscheduling.put("g", {"minMember": 3})
    async with coscheduling.watched(tmp_path, Source.POD_GROUP) as groups:
        await until(groups, Source.POD_GROUP, minimum=3)
        await eventually(lambda: coscheduling._watches)
        for refusal in (403, 500):
            coscheduling.refusal = refusal
            await coscheduling.cut()
            seen = len(coscheduling.asked)
            await eventually(lambda seen=seen: len(coscheduling.asked) > seen + 2)
            await until(groups, Source.POD_GROUP, minimum=3)
        coscheduling.specs["g"] = {"minMember": 4}
        coscheduling.refusal = None
        await until(groups, Source.POD_GROUP, minimum=4)


async def test_one_object_that_cannot_be_read_hides_no_other(coscheduling, tmp_path):
    await coscheduling.put("a", {"minMember": "three"})
    await coscheduling.put("b", None)
    await coscheduling.put("g", {"minMember": 3})
    async with coscheduling.watched(tmp_path, Source.POD_GROUP) as groups:
        await until(groups, Source.POD_GROUP, minimum=3)


async def test_a_takeover_waits_for_pod_groups_that_a_gang_needs(coscheduling, tmp_path):
    await coscheduling.put("g", {"minMember": 3})
    async with coscheduling.watch_of(tmp_path, Source.POD_GROUP) as (watch, groups):
        await watch.wait_if_needed()
        assert of(groups, Source.POD_GROUP).minimum == 3


@pytest.mark.parametrize(("versions", "refusal"), [([], None), (["v1alpha1"], 403)])
async def test_a_takeover_waits_no_longer_than_it_is_known_that_there_are_none(
    coscheduling, tmp_path, versions, refusal
):
    coscheduling.versions, coscheduling.refusal = versions, refusal
    async with coscheduling.watch_of(tmp_path, Source.POD_GROUP) as (watch, _):
        await watch.wait_if_needed()
        assert watch.known.is_set()


async def test_a_takeover_waits_for_pod_groups_neither_in_vain_nor_for_long(
    coscheduling, tmp_path, monkeypatch
):
    monkeypatch.setattr(pod_groups, "KNOWN_SECONDS", 0.05)
    coscheduling.refusal = 500
    async with coscheduling.watch_of(tmp_path, Source.POD_GROUP) as (watch, groups):
        await watch.wait_if_needed()
        groups.forget("default-pod-group")
        monkeypatch.setattr(pod_groups, "KNOWN_SECONDS", 3600)
        await watch.wait_if_needed()
        assert not watch.known.is_set()
