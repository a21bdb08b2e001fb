"""Send a binding into a network that was just cut, then restore the network.

    unshare --net python -m tests.integration.kube.cut_off [UNACKNOWLEDGED_SECONDS]

Print as JSON the requests that the API server received, and after how many seconds no socket could
send unacknowledged data any longer; null if one still could at the end.
"""

import asyncio
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import msgspec
from aiohttp.test_utils import TestServer

from gpushare.errors import OutcomeUnknown
from gpushare.kube.client import Kube
from localcluster.run import run
from tests.builders import pod
from tests.integration.kube.apiserver import FrontDoor, body, write_kubeconfig

WRITE_SECONDS = 0.5
LET_GO_SECONDS = 8.0
DELIVERED_SECONDS = 60.0
TIME_WAIT = "06"  # as /proc/net/tcp has it


def is_held(port: int) -> bool:
    """Return whether a socket to ``port`` may still send."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[2].endswith(f":{port:04X}") and row[3] != TIME_WAIT for row in rows)


async def main(unacknowledged_seconds: float | None) -> None:
    run(["ip", "link", "set", "lo", "up"])
    door = FrontDoor()
    door.answers = [body({"metadata": {"name": "a"}})]
    async with TestServer(door.app) as server:
        path = write_kubeconfig(Path(tempfile.mkdtemp()), f"http://127.0.0.1:{server.port}")
        async with Kube.connect(path, unacknowledged_seconds=unacknowledged_seconds) as kube:
            await kube.get_pod("default", "a")  # its connection is kept for the next request
            rule = f"type filter hook input priority 0; tcp dport {server.port} drop;"
            run(["nft", "-f", "-"], stdin=f"table ip cut {{\nchain in {{ {rule} }}\n}}\n")
            began = time.monotonic()
            with suppress(OutcomeUnknown):
                await kube.bind_pod(pod("a", 8), "n1", {}, seconds=WRITE_SECONDS)
            let_go = await _until(lambda: not is_held(server.port), LET_GO_SECONDS)
            seconds = time.monotonic() - began if let_go else None
            run(["nft", "delete", "table", "ip", "cut"])
            if not let_go:
                await _until(lambda: len(door.asked) > 1, DELIVERED_SECONDS)
            await kube.get_pod("default", "a")
    asked = [method for method, *_ in door.asked]
    sys.stdout.write(msgspec.json.encode({"asked": asked, "let_go_after": seconds}).decode())


async def _until(is_so, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.02)
    return True


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else None))
