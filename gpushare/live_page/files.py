"""Serves the live page's files."""

from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

from aiohttp import web

from gpushare.contract import EXTENDER_PREFIX

PAGE: Final = f"{EXTENDER_PREFIX}/page"  # the live page; its files are below
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
    "Cache-Control": "no-cache",  # another version of the program has another page
}


def add_page(app: web.Application) -> None:
    """Add the page and its files, which contain nothing about any cluster."""
    files = dict(_files(resources.files("gpushare") / "live_page" / "static"))

    async def show(request: web.Request) -> web.Response:
        found = files.get(request.match_info.get("file", "index.html"))
        if found is None:
            text = f"the live page has no such file: open {PAGE}"
            return web.json_response({"Error": text}, status=404)
        body, kind = found
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=_HEADERS)

    app.router.add_get(PAGE, show, name="page")
    app.router.add_get(f"{PAGE}/{{file:.+}}", show, name="page_file")


def _files(folder: Traversable, above: str = "") -> Iterator[tuple[str, tuple[bytes, str]]]:
    """Yield each file by its path below the folder, with its type."""
    for each in folder.iterdir():
        if each.is_dir():
            yield from _files(each, f"{above}{each.name}/")
        elif kind := _TYPES.get(each.name.rpartition(".")[2]):
            yield above + each.name, (each.read_bytes(), kind)
