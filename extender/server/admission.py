"""The webhook that the API server calls when a pod is created."""

from typing import Final

from aiohttp import web

from extender.decisions import scheduler_name
from extender.server.limits import OUTCOME, decoded
from extender.server.paths import ADMISSION
from gpushare.contract import EXTENDER_PREFIX

# An ordinary pod is below 100 KiB. A larger one is not changed, so that a policy rejects it.
MAX_REVIEW: Final = 2**20


def add_to(app: web.Application, name: str) -> None:
    """Add the webhook, which sets ``name`` as the scheduler of pods that request GPU memory."""

    async def admit(request: web.Request) -> web.Response:
        found = await decoded(lambda body: scheduler_name.decide(body, name), request)
        request[OUTCOME] = "changed" if found.changes else "unchanged"
        return web.Response(body=scheduler_name.encode(found), content_type="application/json")

    app.router.add_post(f"{EXTENDER_PREFIX}/{ADMISSION}", admit, name=ADMISSION)
