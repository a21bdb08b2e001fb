"""``gpushare inspect --watch`` on a terminal."""

import asyncio
import os
import signal
import sys

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from localcluster.wait import patient
from tests.builders import node
from tests.integration.kube.apiserver import FrontDoor, body, hang, kubeconfig

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("terminal", ["dumb", "xterm"])
async def test_every_terminal_is_shown_the_nodes(tmp_path, terminal):
    nodes = body({"metadata": {}, "items": [msgspec.to_builtins(node("seen", 8))]})
    none = body({"metadata": {}, "items": []})
    door = FrontDoor()

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await hang(request)
        return await (nodes if request.path == "/api/v1/nodes" else none)(request)

    door.answers = [answer]
    ours, theirs = os.openpty()
    shown = asyncio.Queue[bytes]()
    loop = asyncio.get_running_loop()
    loop.add_reader(ours, lambda: shown.put_nowait(os.read(ours, 2**16)))
    async with TestServer(door.app) as server, asyncio.timeout(patient(60)):
        path = tmp_path / "kubeconfig"
        path.write_bytes(msgspec.json.encode(kubeconfig(str(server.make_url("")))))
        words = ("-m", "gpusharectl", "inspect", "--watch", "--kubeconfig", str(path))
        env = {**os.environ, "TERM": terminal}
        program = await asyncio.create_subprocess_exec(
            sys.executable, *words, env=env, stdout=theirs
        )
        try:
            text = b""
            while b"of 8 MiB free" not in text:
                text += await shown.get()
        finally:
            program.send_signal(signal.SIGKILL)
            await program.wait()
            loop.remove_reader(ours)
            os.close(ours)
            os.close(theirs)
