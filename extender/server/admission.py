"""The webhooks that the API server calls when a pod is created."""

from collections.abc import Callable
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from extender.decisions import admission_review, scheduler_name
from extender.decisions.admission_review import Answer
from extender.gates import gating
from extender.server.limits import OUTCOME
from extender.server.paths import ADMISSION, GATING
from extender.settings.listeners import Admission
from gpushare.contract import EXTENDER_PREFIX
from gpushare.http_server.requests import decoded

# An ordinary pod is below 100 KiB. A larger one is not changed, so that a policy rejects it.
MAX_REVIEW: Final = 2**20


def add_to(app: web.Application, admission: Admission) -> None:
    """Add the webhooks.

    One sets scheduler and tolerations of pods that request GPU memory, the other adds our
    scheduling gate.
    """
    deciders: dict[str, Callable[[bytes], Answer]] = {
        ADMISSION: lambda review: scheduler_name.decide(review, admission),
        GATING: gating.decide,
    }
    for path, decide in deciders.items():
        app.router.add_post(f"{EXTENDER_PREFIX}/{path}", _handler(decide), name=path)


def _handler(decide: Callable[[bytes], Answer]) -> Handler:
    async def admit(request: web.Request) -> web.Response:
        found = await decoded(decide, request)
        request[OUTCOME] = "changed" if found.changes else "unchanged"
        body = admission_review.encode(found)
        return web.Response(body=body, content_type="application/json")

    return admit
