"""Serves the live page's files."""

from importlib import resources
from typing import Final

from aiohttp import web

from extender.server.limits import problem
from extender.server.paths import PAGE

_TYPES: Final = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
# Users choose the names of pods: the browser must not take any text for a script, and no other
# page can show this one in a frame.
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # another version of the extender has another page
}


def add_page(app: web.Application) -> None:
    """Add the page and its files, which contain nothing about any cluster."""
    files = {
        each.name: (each.read_bytes(), _TYPES[suffix])
        for each in (resources.files("extender") / "page" / "static").iterdir()
        if (suffix := each.name.rpartition(".")[2]) in _TYPES
    }

    async def show(request: web.Request) -> web.Response:
        found = files.get(request.match_info.get("file", "index.html"))
        if found is None:
            return problem(404, f"the live page has no such file: open {PAGE}")
        body, kind = found
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=_HEADERS)

    app.router.add_get(PAGE, show, name="page")
    app.router.add_get(f"{PAGE}/{{file}}", show, name="page_file")
