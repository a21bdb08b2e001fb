"""How many files one call passes through: the way that a reader of the code has to follow.

    python -m bench.walks

Runs the programs themselves (the extender and the command line against a paper API server, the
plugin against the kubelet's double) and records each call of a function of the product. A *move* is
a call of a function in another file than the call before it. The smallest of REPEATS walks is
shown, because periodic tasks fall into some of them.
"""

import asyncio
import contextlib
import json
import os
import runpy
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from collections.abc import Set as AbstractSet
from itertools import groupby, pairwise
from pathlib import Path
from types import FrameType
from typing import Any, Final

import aiohttp

from bench.program import API_PORT, EXTENDER_PORT, configured, paper_api
from extender import app
from extender.settings import file
from gpushare.contract import EXTENDER_PREFIX
from tests.fakes.driver import FakeDriver, card
from tests.fakes.kubelet import FakeKubelet
from tests.fakes.pods import pod
from tests.integration.deviceplugin.plugin import Plugin
from tests.waiting import eventually

ROOT: Final = Path(__file__).parents[1]
PRODUCT: Final = tuple(
    f"{ROOT / each}/" for each in ("deviceplugin", "extender", "gpushare", "gpusharectl")
)
REPEATS: Final = 5
SETTLE_SECONDS: Final = 0.3
URL: Final = f"http://127.0.0.1:{EXTENDER_PORT}{EXTENDER_PREFIX}"
Walk = list[tuple[str, str]]
Tasks = AbstractSet[asyncio.Task[Any]]


@contextlib.contextmanager
def recorded(walk: Walk, background: Tasks = frozenset()) -> Iterator[None]:
    """Append (file, function) of each call in this thread, except for calls in these tasks."""

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PRODUCT):
            return
        file = code.co_filename.removeprefix(f"{ROOT}/")
        if code.co_name == "<module>":
            return
        if not (background and running_task() in background):
            walk.append((file, code.co_name))

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


def running_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # a callback, or no loop
        return None


async def shortest(
    name: str, action: Callable[[int], Coroutine[Any, Any, object]], *, in_background: bool = False
) -> None:
    """Show the shortest walk of an action, in tasks that it starts or in all."""
    walks: list[Walk] = []
    for number in range(REPEATS):
        await asyncio.sleep(SETTLE_SECONDS)  # for tasks of the walk before
        walk: Walk = []
        with recorded(walk, frozenset() if in_background else asyncio.all_tasks()):
            # In a new task, because this one counts as background, too.
            await asyncio.create_task(action(number))
        walks.append(walk)
    show(name, min(walks, key=len))


def show(name: str, walk: Walk) -> None:
    files = [file for file, _ in walk]
    moves = sum(one != other for one, other in pairwise(files))
    print(f"{name:40} {len(set(files)):3} files {moves:4} moves {len(walk):4} calls", flush=True)
    if os.environ.get("WALKS"):  # the walk itself, to see where it can be shorter
        for file, steps in groupby(walk, key=lambda step: step[0]):
            print(f"    {file}: {', '.join(function for _, function in steps)}")


async def answered(session: aiohttp.ClientSession, url: str, body: Any = None) -> Any:
    """Return the answer; try until there is one."""
    async with asyncio.timeout(60):
        while True:
            try:
                how = session.get(url) if body is None else session.post(url, json=body)
                async with how as response:
                    text = await response.read()
                    if response.ok:
                        return json.loads(text) if text[:1] in b"{[" else text
            except aiohttp.ClientConnectionError:
                pass
            await asyncio.sleep(0.1)


async def extender_walks(folder: str) -> None:
    """Show filter, bind, an event of the watch, and explain in the extender and command line."""
    path = configured(Path(folder))
    names = [f"paper-{each}" for each in range(3)]
    order = f"http://127.0.0.1:{API_PORT}/bench"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        running = asyncio.create_task(app.run(file.load(path), path))
        await answered(session, f"http://127.0.0.1:{EXTENDER_PORT}/readyz")
        made = await answered(session, f"{order}/waiting?prefix=walk&count={2 * REPEATS}", {})

        async def ask(number: int) -> None:
            body = {"Pod": made[number], "Nodes": None, "NodeNames": names}
            await answered(session, f"{URL}/filter", body)

        async def bind(number: int) -> None:
            meta = made[number]["metadata"]
            who = {"PodName": meta["name"], "PodNamespace": "default", "PodUID": meta["uid"]}
            await answered(session, f"{URL}/bind", {**who, "Node": names[1]})

        async def event(_: int) -> None:
            await answered(session, f"{order}/touch", {})
            await asyncio.sleep(SETTLE_SECONDS)

        async def explain(number: int) -> None:
            name = made[-1]["metadata"]["name"]
            words = ["explain", "pod", name, "--server", URL.removesuffix(EXTENDER_PREFIX)]
            program = [sys.executable, "-m", "bench.walks", *words]
            env = {**os.environ, "KUBECONFIG": f"{folder}/kubeconfig"}
            shown = asyncio.subprocess.DEVNULL if number else None  # the same each time
            process = await asyncio.create_subprocess_exec(
                *program, env=env, stdout=shown, stderr=asyncio.subprocess.DEVNULL
            )
            await process.wait()

        await shortest("filter", ask)
        await shortest("bind", bind)
        await shortest("watch event of a bound pod", event, in_background=True)
        await shortest("explain, in the extender", explain)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def command_line() -> None:
    """Run ``gpushare`` with this program's own words, and show its walk."""
    walk: Walk = []
    sys.argv[0] = "gpushare"
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(sys.stderr), recorded(walk):
        runpy.run_module("gpusharectl", run_name="__main__", alter_sys=True)
    show("explain, in the command line", walk)


async def plugin_walks() -> None:
    cards = [card(0), card(1)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "kubelet").mkdir()
        kubelet = FakeKubelet(folder / "kubelet")
        await kubelet.start()
        made = Plugin(folder, kubelet, FakeDriver(*cards))
        async with made.running():
            await kubelet.until(lambda: kubelet.allocatable)
            await eventually(lambda: not made.driver_watch.why_silent)
            pods = [pod(f"p{number}", 1, cards=(cards[1].uuid,)) for number in range(REPEATS)]
            for each in pods:
                made.watch.changed(each)
            await shortest("Allocate", lambda number: kubelet.admit(pods[number]))
            await shortest(
                "PreStartContainer", lambda number: kubelet.pre_start(pods[number], "app-0")
            )
        await kubelet.stop()


if __name__ == "__main__":
    if sys.argv[1:]:
        command_line()
    else:
        with paper_api(3, 2, 1), tempfile.TemporaryDirectory() as made_for_it:
            asyncio.run(extender_walks(made_for_it))
        asyncio.run(plugin_walks())
