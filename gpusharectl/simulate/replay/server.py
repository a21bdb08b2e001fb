"""Serves the live page with the steps of a simulation on this machine."""

import asyncio
import re
from collections import deque
from contextlib import suppress
from http import HTTPStatus
from typing import Final

import click
import msgspec
from aiohttp import web

from gpushare.contract import EXTENDER_PREFIX
from gpushare.http_server.requests import problem
from gpushare.live_page import feed
from gpushare.live_page.files import PAGE, add_page
from gpusharectl.loopback import served
from gpusharectl.simulate.replay.steps import Replay
from gpusharectl.terminal.say import say

HEARTBEAT_SECONDS: Final = 15.0
_MOST_NODES: Final = 1000
_NUMBER: Final = re.compile("[1-9][0-9]{0,99}")


async def serve(replay: Replay, port: int, *, browse: bool, step: int | None) -> None:
    """Serve until Ctrl-C."""
    async with served(application(replay), port, name="simulate") as url:
        page = f"{url}{PAGE}" + (f"#step={step}" if step is not None else "")
        say(f"{page}\nPress Ctrl-C to end.")
        if browse:
            click.launch(page)
        with suppress(asyncio.CancelledError):  # Ctrl-C
            await asyncio.Event().wait()


def application(replay: Replay) -> web.Application:
    """Return the page, its stream and its explanations.

    Each request names the step it is about; one after the last means the last, so that the page of
    a longer simulation's URL leads to the other steps.
    """

    async def changes(request: web.Request) -> web.StreamResponse:
        number = _number(request, "step", 1, replay.count)
        if number is None:
            return problem(HTTPStatus.BAD_REQUEST, f"the steps are 1 to {replay.count}")
        response = web.StreamResponse(headers=feed.HEADERS)
        await response.prepare(request)
        events = deque(replay.events(number))  # before another request goes to another step
        with suppress(ConnectionError):
            while events:
                await response.write(events.popleft())
            while True:
                await asyncio.sleep(HEARTBEAT_SECONDS)
                await response.write(feed.HEARTBEAT)
        return response

    async def explain(request: web.Request) -> web.Response:
        number = _number(request, "step", 1, replay.count)
        shown = _number(request, "nodes", 20, _MOST_NODES)
        if number is None or shown is None:
            return problem(HTTPStatus.BAD_REQUEST, f"the steps are 1 to {replay.count}")
        names = request.match_info["namespace"], request.match_info["pod"]
        found = replay.explained(number, *names, shown)
        if found is None:
            return problem(HTTPStatus.NOT_FOUND, "there is no such pod in this step")
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

    app = web.Application()
    app.router.add_get(f"{EXTENDER_PREFIX}/{feed.PATH}", changes, allow_head=False)
    app.router.add_get(f"{EXTENDER_PREFIX}/explain/{{namespace}}/{{pod}}", explain)
    add_page(app)
    return app


def _number(request: web.Request, name: str, usual: int, most: int) -> int | None:
    """Return a number of the query, at most ``most``; None for anything that is not one from 1."""
    text = request.query.get(name, str(usual))
    return min(int(text), most) if _NUMBER.fullmatch(text) else None
