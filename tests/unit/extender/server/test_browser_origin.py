"""The page's files, and the requests that browsers send for pages of other sites."""

import asyncio

import aiohttp
import pytest

from extender.routes import serve
from extender.server.authorization import Authorizer
from extender.settings.listeners import Address, Listen
from extender.settings.listeners import ReadingListener as Reading
from localcluster.wait import patient
from tests.builders import pod
from tests.unit.extender.scripted import PREFIX

BINDING = b'{"PodName": "a", "PodNamespace": "default", "PodUID": "uid-a", "Node": "n"}'
CROSS = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
NAVIGATION = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
LINK = {**NAVIGATION, "Sec-Fetch-Dest": "document"}
FRAME = {**NAVIGATION, "Sec-Fetch-Dest": "iframe"}


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("page", "text/html"),
        ("page/main.js", "text/javascript"),
        ("page/styles/base.css", "text/css"),
        ("page/icon.svg", "image/svg+xml"),
    ],
)
async def test_the_page_and_its_files_have_security_headers(client, path, kind):
    async with client.get(f"{PREFIX}/{path}") as answer:
        assert (answer.status, answer.content_type) == (200, kind)
        policy = answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        text = await answer.text()
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "//cdn" not in text
    assert "<script>" not in text


@pytest.mark.parametrize("name", ["nothing.js", "..%2Ffeed.py", "__init__.py", "%00"])
async def test_other_files_are_404(client, name):
    async with client.get(f"{PREFIX}/page/{name}") as answer:
        assert answer.status == 404


async def test_no_page_in_a_browser_can_bind_a_pod(client, bench):
    """Any site can send a form or a no-cors fetch to 127.0.0.1, without seeing the response."""
    bench.add(pod("a", 8))
    for headers in (
        {"Origin": "https://evil.example", "Content-Type": "text/plain"},
        {"Origin": "null", "Content-Type": "application/x-www-form-urlencoded"},
        {"Origin": "http://127.0.0.1:29766", "Content-Type": "application/json"},
        {**CROSS, "Content-Type": "text/plain"},
        {**LINK, "Content-Type": "text/plain"},
    ):
        for verb in ("bind", "filter", "prioritize", "preempt"):
            async with client.post(f"{PREFIX}/{verb}", data=BINDING, headers=headers) as answer:
                assert answer.status == 403
    assert bench.kube.bindings == []
    async with client.post(f"{PREFIX}/bind", data=BINDING) as answer:
        assert (await answer.json())["Error"] == ""
    assert len(bench.kube.bindings) == 1


@pytest.mark.parametrize("path", [f"{PREFIX}/inspect", f"{PREFIX}/changes", "/metrics"])
async def test_pages_of_other_sites_read_nothing_and_their_links_work(client, path):
    for headers in (CROSS, FRAME):
        async with client.get(path, headers=headers) as answer:
            assert answer.status == 403
    for headers in (LINK, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}):
        async with client.get(path, headers=headers) as answer:
            assert answer.status == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:{}", 200),
        ("localhost:{}", 200),
        ("[::1]:{}", 200),
        ("10.0.0.7", 200),
        ("evil.example:{}", 421),
        ("127.0.0.1.evil.example:{}", 421),
        ("localhost.evil.example", 421),
        ("x y", 421),
    ],
)
async def test_other_host_names_are_rejected_on_loopback(
    bench, routes, unused_tcp_port_factory, host, status
):
    deciding, reading = unused_tcp_port_factory(), unused_tcp_port_factory()
    listen = Listen(
        deciding=Address("127.0.0.1", deciding),
        reading=Reading(host="127.0.0.1", port=reading, access="open"),
    )
    serving = serve(listen, routes, Authorizer(bench.kube, bench.time))
    async with serving, aiohttp.ClientSession() as session:
        for port in (deciding, reading):
            for path in (f"{PREFIX}/inspect", f"{PREFIX}/page", "/metrics"):
                url, said = f"http://127.0.0.1:{port}{path}", {"Host": host.format(port)}
                async with session.get(url, headers=said) as answer:
                    assert answer.status == status, (path, port)


@pytest.mark.parametrize(("version", "status"), [("1.0", b"421"), ("1.1", b"400")])
async def test_a_request_without_a_host_is_rejected_on_loopback(
    bench, routes, unused_tcp_port, version, status
):
    listen = Listen(deciding=Address("127.0.0.1", unused_tcp_port))
    async with (
        serve(listen, routes, Authorizer(bench.kube, bench.time)),
        asyncio.timeout(patient(5)),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", unused_tcp_port)
        writer.write(f"GET {PREFIX}/inspect HTTP/{version}\r\n\r\n".encode())
        assert (await reader.readline()).split()[1] == status
        writer.close()
