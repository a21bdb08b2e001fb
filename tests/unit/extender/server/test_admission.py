"""The webhook over TLS: what the API server gets, and what others cannot do there."""

import asyncio
import base64
import io
import json
import ssl
from contextlib import AsyncExitStack

import aiohttp
import pytest

from extender import routes
from extender.routes import READING_CONNECTIONS, Routes, serve
from extender.server.admission import MAX_REVIEW
from extender.server.authorization import Authorizer
from extender.settings.listeners import Address, Admission, Certificate, Listen
from localcluster.wait import patient
from tests.fakes.certificates import certificate
from tests.unit.extender.decisions.test_scheduler_name import OURS, review
from tests.unit.extender.scripted import PREFIX

GPU = {"resources": {"limits": {OURS[0]: 8}}}
POD = {"schedulerName": "default-scheduler", "containers": [GPU]}


@pytest.fixture
async def ask(bench, tmp_path, unused_tcp_port_factory, monkeypatch):
    """Give a function that sends a body to a path of the listener and returns status and answer.

    The extender has not listed the cluster yet.
    """
    monkeypatch.setattr(routes, "ADMISSION_FIRST_SECONDS", patient(5))
    own = certificate(tmp_path, "server")
    address = ("127.0.0.1", unused_tcp_port_factory())
    shown = Certificate(str(own), str(own.with_suffix(".key")))
    listen = Listen(
        Address("127.0.0.1", unused_tcp_port_factory()), admission=Admission(*address, shown)
    )
    served = Routes(bench.cluster, bench.binder, lambda: ["pods are not listed yet"])
    context = ssl.create_default_context(cafile=str(own))
    async with (
        serve(listen, served, Authorizer(None, bench.time)),
        aiohttp.ClientSession(f"https://127.0.0.1:{address[1]}") as session,
    ):

        async def asked(path, body, **headers):
            request = session.post(PREFIX + path, data=body, ssl=context, headers=headers)
            async with request as response:
                return response.status, await response.read()

        asked.connect = lambda source: asyncio.open_connection(
            *address, ssl=context, server_hostname="127.0.0.1", local_addr=(source, 0)
        )
        yield asked


async def test_the_api_server_gets_the_patch_before_the_cluster_is_listed(ask):
    status, answer = await ask("/admission?timeout=2s", review(POD))
    assert status == 200
    assert json.loads(answer)["response"]["patchType"] == "JSONPatch"


async def test_the_second_webhook_adds_the_gate(ask):
    status, answer = await ask("/gating?timeout=2s", review(POD))
    assert status == 200
    patch = json.loads(base64.b64decode(json.loads(answer)["response"]["patch"]))
    gate = {"name": "gpushare.aliyun.com/admission"}
    assert patch == [{"op": "add", "path": "/spec/schedulingGates", "value": [gate]}]


@pytest.mark.parametrize("path", ["/admission", "/gating"])
async def test_a_body_that_is_no_review_or_too_large_gets_an_error_and_no_patch(ask, path):
    status, answer = await ask(path, b"{}")
    assert (status, b"body cannot be read" in answer) == (400, True)
    status, answer = await ask(path, io.BytesIO(bytes(MAX_REVIEW + 1)))
    assert (status, b"the limit is" in answer) == (413, True)


async def test_nothing_else_is_served_there(ask):
    for path in ("/filter", "/bind", "/inspect", "/what-if"):
        assert (await ask(path, b"{}"))[0] == 404
    status, _ = await ask("/admission", review(POD), **{"Sec-Fetch-Site": "cross-site"})
    assert status == 403


async def test_idle_connections_of_one_address_do_not_shut_out_the_api_server(ask):
    async with AsyncExitStack() as stack:
        for _ in range(READING_CONNECTIONS):
            _, writer = await ask.connect("127.0.0.2")
            stack.callback(writer.close)
        with pytest.raises(ConnectionError):  # it has the most already
            await ask.connect("127.0.0.2")
        assert (await ask("/admission", review(POD)))[0] == 200


async def test_many_reviews_after_a_start_are_answered(ask):
    statuses = await asyncio.gather(*(ask("/admission", review(POD)) for _ in range(50)))
    assert [status for status, _ in statuses] == [200] * 50
