"""Ask an extender to filter an ordinary pod, 20 times a second, and print what each call took.

    python -m tests.trials.filter_probe PORT NODE...

Each line has the moment of the call by the machine's monotonic clock, and milliseconds; a call
that was not answered has ``inf``.
"""

import http.client
import json
import sys
import time
from http import HTTPStatus
from typing import Final

EVERY_SECONDS: Final = 0.05
ANSWER_SECONDS: Final = 5.0


def body(nodes: list[str]) -> bytes:
    """Return a filter call of kube-scheduler's about a pod of the usual size."""
    amounts = {"aliyun.com/gpu-mem": "2", "cpu": "100m", "memory": "64Mi"}
    container = {
        "name": "main",
        "image": "registry.example/team/application:1.2.3",
        "env": [{"name": f"SETTING_{place}", "value": "x" * 20} for place in range(20)],
        "resources": {"limits": amounts, "requests": amounts},
    }
    meta = {"name": "probe", "namespace": "default", "labels": {"app": "probe"}}
    spec = {"containers": [container], "priority": 0}
    return json.dumps({"Pod": {"metadata": meta, "spec": spec}, "NodeNames": nodes}).encode()


def main() -> int:
    """Call until the output is closed; return the exit code."""
    port, nodes = int(sys.argv[1]), sys.argv[2:]
    sent = body(nodes)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
    while True:
        began = time.monotonic()
        took = call(connection, sent, began)
        try:
            print(f"{began:.3f} {took:.3f}", flush=True)
        except BrokenPipeError:
            return 0
        time.sleep(max(0.0, began + EVERY_SECONDS - time.monotonic()))


def call(connection: http.client.HTTPConnection, sent: bytes, began: float) -> float:
    """Return the milliseconds of one call."""
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/gpushare-scheduler/filter", sent, headers)
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException):
        connection.close()
        return float("inf")
    if answer.status != HTTPStatus.OK:
        return float("inf")
    return (time.monotonic() - began) * 1000


if __name__ == "__main__":
    sys.exit(main())
