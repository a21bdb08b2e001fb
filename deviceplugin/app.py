"""Runs the device plugin: as a process that is started again, and as the one that serves."""

import asyncio
import gc
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

from aiohttp import web
from prometheus_client import REGISTRY

from deviceplugin import metrics
from deviceplugin.cards.survey import Terms
from deviceplugin.driver.interface import Backend, ProcessSource
from deviceplugin.driver.nvml import Nvml, NvmlProcesses
from deviceplugin.driver.simulated import SimulatedGpus
from deviceplugin.kubelet.pods_endpoint import KubeletPods
from deviceplugin.lifecycle.clean import clean
from deviceplugin.lifecycle.handover import Standby, Successors
from deviceplugin.lifecycle.instance_lock import InstanceLock
from deviceplugin.lifecycle.preflight import Preflight
from deviceplugin.lifecycle.supervisor import supervise
from deviceplugin.parts import Plugin
from deviceplugin.settings import NAME, Settings
from gpushare.errors import SettingsError
from gpushare.http_server.listeners import Listener, serve_app
from gpushare.kube import client
from gpushare.process import lifetime
from gpushare.telemetry import health

CONNECTIONS = 64  # a head may take a megabyte
HEAD_SECONDS = 5.0  # for a request
PAGE_SECONDS = 0.2  # for a page at the end: the node has no units until the next plugin starts
_LOCK_SECONDS = 0.03  # between two checks whether another plugin has the lock
_PORT_SECONDS = 0.1  # between two attempts to get the port of the previous process


def start(settings: Settings) -> int:
    """Run the program to its exit code."""
    if settings.cleans:
        return lifetime.run(partial(clean, settings), NAME)

    def work(before: int) -> int:
        return lifetime.run(partial(run, settings, *_driver(settings), before=before), NAME)

    gc.freeze()  # imported modules stay shared between the processes
    return supervise(work)


def _driver(settings: Settings) -> tuple[Backend, ProcessSource]:
    if not settings.simulated_mib:
        return Nvml(settings.cgroup_dir), NvmlProcesses()
    simulated = SimulatedGpus(settings.node_name, settings.simulated_mib)
    return simulated, simulated


def count_refused(_listener: str) -> None:
    metrics.REFUSED_CONNECTIONS.inc()


class _Pages:
    """The pages of ``add_pages``; another process of the container may still use their port."""

    def __init__(self, settings: Settings, add_pages: Callable[[web.Application], None]) -> None:
        self._settings = settings
        self._add_pages = add_pages
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        """Start to serve; SettingsError if the address cannot be used."""
        app = web.Application()
        self._add_pages(app)
        host, port = self._settings.http_host, self._settings.http_port
        listener = Listener(
            "plugin", host, port, CONNECTIONS, HEAD_SECONDS,
            keeps_alive=False, stop_seconds=PAGE_SECONDS, refused=count_refused,
        )  # fmt: skip
        await self._stack.enter_async_context(serve_app(listener, app))

    async def open_when_free(self) -> None:
        """Serve as soon as the address can be used."""
        while True:
            try:
                return await self.open()
            except SettingsError:
                await asyncio.sleep(_PORT_SECONDS)

    async def close(self) -> None:
        await self._stack.aclose()


async def run(
    settings: Settings, backend: Backend, processes: ProcessSource, *, before: int = 0
) -> None:
    """Run until SIGTERM or SIGINT. SettingsError if the API or the port cannot be used.

    /healthz reports that the program answers: a part that fails ends it. /readyz reports reasons; a
    plugin that stands by for another has one until its ``Preflight`` has succeeded. ``before`` is
    the number of processes of this container that were started earlier; one of them may still run.
    """
    plugins: list[Plugin] = []
    metrics.CRASHES.set(before)
    async with AsyncExitStack() as stack:
        stopped = stack.enter_context(lifetime.stop_on_signals())
        stack.enter_context(lifetime.unwrap_restart())
        lock = await stack.enter_async_context(InstanceLock(settings.state_dir))
        preflight = Preflight(
            backend, Terms(settings.unit_mib, settings.reserved_mib, reserve=settings.reserve)
        )

        def why_not_ready() -> list[str]:
            if plugins:
                return plugins[0].why_not_ready()
            if not lock.why_waiting:
                return ["starting"]
            return [preflight.why_not] if preflight.why_not else []

        def remarks() -> list[str]:
            return plugins[0].checks.remarks if plugins else []

        def add_pages(app: web.Application) -> None:
            health.add_pages(app, why_not_ready, remarks=remarks)

        kube = await stack.enter_async_context(client.Kube.connect(settings.kubeconfig))
        kubelet = await stack.enter_async_context(
            KubeletPods(
                settings.node_address,
                settings.kubelet_port,
                settings.kubelet_certificate,
                settings.kubelet_token,
                settings.kubelet_tls,
            )
        )
        pages = _Pages(settings, add_pages)
        stack.push_async_callback(pages.close)
        if before:
            opening = asyncio.create_task(pages.open_when_free())
            stack.push_async_callback(lifetime.cancel, [opening])
        else:
            await pages.open()
        turn = asyncio.create_task(Standby(settings.state_dir, lock).its_turn())
        checking = asyncio.create_task(_check_while_standing_by(preflight, lock))
        stop = asyncio.create_task(stopped.wait())
        stack.push_async_callback(lifetime.cancel, [turn, checking, stop])
        pending = {turn, stop, checking}
        while {turn, stop} <= pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if checking in done:
                checking.result()  # raises an unexpected error
        await lifetime.cancel([stop, checking])
        if not turn.done():
            return
        plugin = Plugin(settings, backend, processes, kube, kubelet=kubelet, preflight=preflight)
        plugins.append(plugin)
        REGISTRY.register(plugin.collector)
        stack.callback(REGISTRY.unregister, plugin.collector)
        await plugin.run(
            turn.result(),
            Successors(settings.state_dir),
            stopped=stopped,
            handed_over=pages.close,
        )


async def _check_while_standing_by(preflight: Preflight, lock: InstanceLock) -> None:
    while not lock.why_waiting:  # noqa: ASYNC110 - the only plugin of a node must not wait for this
        await asyncio.sleep(_LOCK_SECONDS)
    await preflight.run()
