"""Middlewares against pages of other sites, which can have a visitor's browser send requests."""

from functools import lru_cache
from http import HTTPStatus
from ipaddress import ip_address

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler
from yarl import URL

from extender.server.paths import DECIDING
from gpushare.http_server.requests import problem
from gpushare.live_page.origin import is_of_another_site


@web.middleware
async def reject_other_sites(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Reject requests that a browser sends for a page of another site.

    Any page can have a browser post to a loopback port, where bind is not authenticated; it does
    not need to see the response. Browsers reveal this in ``Origin``, which no kube-scheduler sends,
    and in ``Sec-Fetch-Site``. Following a link is allowed: the linking site sees no response.
    """
    headers, verb = request.headers, request.match_info.route.name
    if verb in DECIDING and hdrs.ORIGIN in headers:
        return problem(HTTPStatus.FORBIDDEN, f"{verb} is not for pages in a browser")
    if is_of_another_site(request.method, headers):
        return problem(HTTPStatus.FORBIDDEN, "pages of other sites cannot send requests here")
    return await handler(request)


@web.middleware
async def reject_other_hosts(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Require a ``Host`` that is an IP address or ``localhost``; for loopback without TLS.

    A site whose DNS name changes to 127.0.0.1 while a visitor has it open (DNS rebinding) would
    have the extender's origin in that browser, and could read all responses.
    """
    host = request.headers.get(hdrs.HOST, "")
    if _is_address(host):
        return await handler(request)
    text = f"the host name {host[:63]!r} is not served: use 127.0.0.1 or localhost"
    return problem(HTTPStatus.MISDIRECTED_REQUEST, text)


@lru_cache(maxsize=64)
def _is_address(host: str) -> bool:
    try:
        name = URL(f"http://{host}").host or ""
        if name != "localhost":
            ip_address(name)
    except ValueError:
        return False
    return True
