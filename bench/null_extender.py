"""The smallest possible extender, as the floor: it decodes, accepts nodes unseen, and binds.

    python -m bench.null_extender SERVER PKI PORT

Under /null filter answers with all names that it received, under /few with the first FEW of them.
bind posts a Binding without annotations through plain aiohttp. PKI is the folder with the
administrator's certificate.
"""

import asyncio
import ssl
import sys
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import uvloop
from aiohttp import web

FEW = 8


class _Args(msgspec.Struct):
    pod: msgspec.Raw = msgspec.field(name="Pod")
    names: list[str] = msgspec.field(name="NodeNames")


class _Result(msgspec.Struct):
    names: list[str] = msgspec.field(name="NodeNames")
    failed: dict[str, str] = msgspec.field(name="FailedNodes", default_factory=dict)
    error: str = msgspec.field(name="Error", default="")


class _Binding(msgspec.Struct):
    name: str = msgspec.field(name="PodName")
    namespace: str = msgspec.field(name="PodNamespace")
    node: str = msgspec.field(name="Node")


_args = msgspec.json.Decoder(_Args).decode
_binding = msgspec.json.Decoder(_Binding).decode


def answer(found: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(found), content_type="application/json")


class Null:
    def __init__(self, session: aiohttp.ClientSession, server: str) -> None:
        self.session, self.server = session, server

    async def filter(self, request: web.Request) -> web.Response:
        return answer(_Result(_args(await request.read()).names))

    async def few(self, request: web.Request) -> web.Response:
        return answer(_Result(_args(await request.read()).names[:FEW]))

    async def bind(self, request: web.Request) -> web.Response:
        asked = _binding(await request.read())
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": asked.name, "namespace": asked.namespace},
            "target": {"apiVersion": "v1", "kind": "Node", "name": asked.node},
        }
        path = f"/api/v1/namespaces/{asked.namespace}/pods/{asked.name}/binding"
        async with self.session.post(self.server + path, json=body) as response:
            text = await response.text()
            return answer({"Error": "" if response.ok else text})


async def main() -> None:
    server, folder, port = sys.argv[1:]
    pki = Path(folder)
    context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
        null = Null(session, server)
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/null/filter", null.filter)
        app.router.add_post("/few/filter", null.few)
        for prefix in ("null", "few"):
            app.router.add_post(f"/{prefix}/bind", null.bind)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", int(port), backlog=1024).start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
