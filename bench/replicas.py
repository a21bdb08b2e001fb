"""A second replica of the extender, which forwards every deciding call to the leader."""

import datetime as dt
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from extender.leadership.election import SingleReplica
from extender.routes import (
    DECIDING_CONNECTIONS,
    DECIDING_IDLE_SECONDS,
    Routes,
    replica_listener,
)
from extender.server.browser_origin import reject_other_hosts
from extender.server.leader_proxy import Forwarder, decide_for_replicas, decide_or_forward
from extender.server.tls import client_contexts
from extender.settings.listeners import Address, Tls
from gpushare.http_server.listeners import Listener, serve_app
from gpushare.kube.lease import Record
from gpusharectl.certificates import files as certificates

_HOST: Final = "127.0.0.1"


def tls_in(folder: Path) -> Tls:
    """Make the certificates of an installation in ``folder``."""
    name = certificates.REPLICA
    for file, made in certificates.make((name,), now=dt.datetime.now(dt.UTC), days=1).items():
        (folder / file).write_bytes(made)
    return Tls(
        certificate=str(folder / f"{name}.crt"),
        key=str(folder / f"{name}.key"),
        authority=str(folder / "ca.crt"),
        allowed_names=(name,),
    )


class _Follows:
    decides = False
    why_not = "it follows"


@asynccontextmanager
async def handing_on(
    routes: Routes, folder: Path, *, port: int, leader_port: int
) -> AsyncIterator[None]:
    """Serve on ``port`` like a replica whose leader has these ``routes``."""
    tls = tls_in(folder)
    leader = Record("leads", "1", seconds=3600, address=f"{_HOST}:{leader_port}")
    async with AsyncExitStack() as stack:
        listener = replica_listener(Address(_HOST, leader_port), tls)
        app = routes.app(decide_for_replicas(SingleReplica(), tls.allowed_names))
        await stack.enter_async_context(serve_app(listener, app))
        forwarder = await stack.enter_async_context(
            Forwarder.connect(lambda: leader, client_contexts(tls), tls.allowed_names[0])
        )
        listener = Listener("deciding", _HOST, port, DECIDING_CONNECTIONS, DECIDING_IDLE_SECONDS)
        app = routes.app(decide_or_forward(_Follows(), forwarder), outside=[reject_other_hosts])
        await stack.enter_async_context(serve_app(listener, app))
        yield
