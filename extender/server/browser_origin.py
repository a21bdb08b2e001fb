"""The live page as a browser loads it, and what pages of other sites may not make a browser do."""

from http import HTTPStatus
from importlib import resources
from ipaddress import ip_address
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler
from yarl import URL

from extender.server.limits import DECIDING, PAGE, problem

_TYPES: Final = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
# Names of pods are whatever their users like: nothing on the page may be taken for a script, and
# no other page may show it in a frame.
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
    "Cache-Control": "no-cache",  # an extender of another version has another page
}


def add_page(app: web.Application) -> None:
    """Add the page and its files, which say nothing about any cluster."""
    files = {
        each.name: (each.read_bytes(), _TYPES[suffix])
        for each in (resources.files("extender") / "page" / "static").iterdir()
        if (suffix := each.name.rpartition(".")[2]) in _TYPES
    }

    async def show(request: web.Request) -> web.Response:
        found = files.get(request.match_info.get("file", "index.html"))
        if found is None:
            return problem(404, f"the live page has no such file: it is at {PAGE}")
        body, kind = found
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=_HEADERS)

    app.router.add_get(PAGE, show, name="page")
    app.router.add_get(f"{PAGE}/{{file}}", show, name="page_file")


@web.middleware
async def own_pages_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse what a page of another site makes its visitor's browser ask here.

    Any page may have a browser post to a loopback port, where who calls bind is asked no more: it
    need not see the answer. Browsers say so in ``Origin``, which no kube-scheduler sends, and in
    ``Sec-Fetch-Site``. Somebody who follows a link shows nothing to the site that he comes from.
    """
    headers, verb = request.headers, request.match_info.route.name
    if verb in DECIDING and hdrs.ORIGIN in headers:
        return problem(HTTPStatus.FORBIDDEN, f"{verb} is not for pages in a browser")
    if headers.get("Sec-Fetch-Site", "none") not in {"none", "same-origin"}:
        is_link = request.method == hdrs.METH_GET and headers.get("Sec-Fetch-Mode") == "navigate"
        if not is_link:
            return problem(HTTPStatus.FORBIDDEN, "pages of other sites may not ask here")
    return await handler(request)


@web.middleware
async def addressed(request: web.Request, handler: Handler) -> web.StreamResponse:
    """On loopback in the clear: only callers who name it by an address, or as ``localhost``.

    A site whose name is made to mean 127.0.0.1 while somebody looks at it would be taken by his
    browser for the extender itself, and read all that is said here.
    """
    host = request.headers.get(hdrs.HOST, "")
    if not host or _is_addressed(host):
        return await handler(request)
    text = f"nobody is called {host[:63]!r} here: ask 127.0.0.1 or localhost"
    return problem(HTTPStatus.MISDIRECTED_REQUEST, text)


def _is_addressed(host: str) -> bool:
    try:
        name = URL(f"http://{host}").host or ""
        if name != "localhost":
            ip_address(name)
    except ValueError:
        return False
    return True
