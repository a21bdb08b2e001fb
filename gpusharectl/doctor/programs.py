"""Ask the programs: plugins, extenders, and every kube-scheduler."""

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

import msgspec

from gpushare.errors import UNDECODABLE, ApiError, SettingsError
from gpushare.kube.client import Kube
from gpusharectl.doctor import api_objects, over_tls
from gpusharectl.doctor.checks.scheduler import plain
from gpusharectl.doctor.facts.cluster import (
    EXTENDER,
    PLUGIN,
    SECOND_SCHEDULER,
    Facts,
    Program,
    Scheduler,
    Unknown,
)
from gpusharectl.doctor.known import each_known, known
from gpusharectl.reach import extender
from gpusharectl.reach.options import Target
from gpusharectl.reach.plugin_pages import before_reasons, plugin_page
from gpusharectl.reach.port_forward import Forward
from gpusharectl.reach.rights import Lacking, Right
from gpusharectl.reach.samples import Samples

SCHEDULER_PORT: Final = 10259
SYSTEM: Final = "kube-system"


class Programs:
    """One method for each kind of program; a program that cannot be asked is Unknown."""

    def __init__(self, target: Target, kube: Kube, bare: Facts) -> None:
        self._target, self._kube, self._bare = target, kube, bare
        self._system = bare.system

    async def plugins(self) -> dict[str, Program | Unknown]:
        names = [pod.metadata.name for pod in self._bare.pods_of(PLUGIN) if pod.node]
        return await each_known(names, self._plugin)

    async def _plugin(self, pod: str) -> Program:
        async def get(page: str) -> bytes:
            return await plugin_page(self._kube, self._system, pod, page)

        return await program(get, before_reasons(self._system, pod))

    async def named_extender(self) -> dict[str, Program | Unknown]:
        """Ask the one that ``--server`` names, if any. SettingsError for a bad URL."""
        server = self._target.server
        return await each_known([] if server is None else [server], self._extender_by_url)

    async def extenders(self) -> dict[str, Program | Unknown]:
        """Ask those that run as pods, if ``--server`` names none."""
        if self._target.server is not None:
            return {}
        running = self._bare.pods_of(EXTENDER, SECOND_SCHEDULER)
        return await each_known([pod.metadata.name for pod in running if pod.node], self._extender)

    async def _extender(self, pod: str) -> Program:
        async with extender.by_pod(self._kube, self._system, pod) as asked:
            return await program(asked.get, f"{asked.where}: ")

    async def _extender_by_url(self, _: str) -> Program:
        async with extender.extender(self._target, self._kube) as asked:
            return await program(asked.get, f"{asked.where}: ")

    async def schedulers(self, address: tuple[str, int] | None) -> dict[str, Scheduler | Unknown]:
        if address is not None:
            host, port = address
            name = f"kube-scheduler at {host}:{port}"
            return {name: await known(self._configuration(address, ""))}
        own = [
            pod
            for pod in self._bare.pods
            if pod.metadata.namespace == SYSTEM and pod.labels.get("component") == "kube-scheduler"
        ]
        here = {pod.key: pod for pod in (*own, *self._bare.pods_of(SECOND_SCHEDULER)) if pod.node}
        if not here:
            why = (
                f"no kube-scheduler runs as a pod in {SYSTEM} (label component=kube-scheduler): "
                "use --scheduler-url=https://HOST:10259"
            )
            return {"kube-scheduler": Unknown(why)}

        async def ask(name: str) -> Scheduler:
            pod = here[name]
            where = pod.metadata.namespace, pod.metadata.name, SCHEDULER_PORT
            async with Forward.to(self._kube, *where) as forward:
                try:
                    return await self._configuration(forward.socket, pod.node)
                except ApiError as err:
                    raise forward.problem or err from err

        return await each_known(here, ask)

    async def _configuration(self, address: over_tls.Address, node: str) -> Scheduler:
        own = self._kube.client_certificate
        if own is None:
            raise ApiError(
                "kube-scheduler's certificate cannot be verified, so no token is sent to it, and "
                "the kubeconfig has no client certificate"
            )
        status, body = await asyncio.to_thread(over_tls.page, address, "/configz", own)
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise Lacking(Right("get", "/configz", is_namespaced=False))
        if status != HTTPStatus.OK:
            raise ApiError(f"/configz: {status}: {body[:200].decode(errors='replace')}")
        try:
            found = msgspec.json.decode(body, type=api_objects.Configz)
        except UNDECODABLE as err:
            raise ApiError(f"/configz cannot be read: {err}") from err
        return Scheduler(node, plain(found.componentconfig))


def scheduler_address(url: str) -> tuple[str, int]:
    """Return host and port of a kube-scheduler's URL; SettingsError if it is invalid."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or SCHEDULER_PORT
    except ValueError:
        parts, host, port = None, None, 0
    if parts is None or parts.scheme != "https" or not host:
        raise SettingsError(f"--scheduler-url is {url!r}: write https://HOST:{SCHEDULER_PORT}")
    return host, port


async def program(get: Callable[[str], Awaitable[bytes]], before: str) -> Program:
    """Ask a program; ``before`` precedes its own text in an error."""
    version = msgspec.json.decode(await get("/version"), type=api_objects.About).version
    reasons: tuple[str, ...] = ()
    try:
        await get("/readyz")
    except ApiError as err:
        if err.code != HTTPStatus.SERVICE_UNAVAILABLE:
            raise
        reasons = tuple(str(err).removeprefix(before).strip().splitlines()) or ("no reason",)
    return Program(version, reasons, Samples((await get("/metrics")).decode(errors="replace")))
