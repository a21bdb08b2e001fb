"""The record of all pods goes on, whatever the API server answers meanwhile."""

import http.client
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from localcluster.wait import patient, wait_until
from localcluster.workloads import pod
from tests.cluster.history import History

pytestmark = pytest.mark.integration

REFUSED = (429, {"kind": "Status", "message": "too many requests"})
LISTED = (200, {"items": [], "metadata": {"resourceVersion": "1"}})
EXPIRED = (200, {"type": "ERROR", "object": {"kind": "Status", "code": 410}})


def told(name: str, node: str) -> dict:
    made = pod(name, 100)
    made["metadata"]["uid"] = f"uid-{name}"
    made["spec"]["nodeName"] = node
    return {"type": "MODIFIED", "object": {**made, "status": {}}}


class Recorded(History):
    """A history of a server that gives these answers, and then what tells of one pod."""

    def __init__(self, port: int) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self._port = port

    def _connect(self) -> http.client.HTTPConnection:  # type: ignore[override]
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=patient(5))


@pytest.fixture
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    answers = list(request.param)

    class Server(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, body = answers.pop(0) if answers else REFUSED
            text = json.dumps(body).encode() + b"\n"
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


BOUND = (200, told("a", "n1"))


@pytest.mark.parametrize(
    "port",
    [
        [REFUSED, LISTED, BOUND],
        [LISTED, REFUSED, LISTED, BOUND],
        [LISTED, EXPIRED, LISTED, BOUND],
    ],
    ids=["list", "watch", "event"],
    indirect=True,
)
def test_a_refusal_is_asked_again_and_what_comes_then_is_checked(port: int) -> None:
    with Recorded(port) as history:
        wait_until("the pod", lambda: None if history.changes else "none", seconds=10)
        with pytest.raises(AssertionError, match="a: "):
            history.check_bound_once_and_whole()


@pytest.mark.parametrize("port", [[LISTED, BOUND, LISTED, (200, told("b", "n1"))]], indirect=True)
def test_a_stranger_is_allowed_for_one_test_alone(port: int) -> None:
    with Recorded(port) as history:
        history.allow_stranger("a")
        wait_until("the pods", lambda: None if len(history.changes) == 2 else "no", seconds=10)
        history.allow_stranger("b")
        history.check_bound_once_and_whole()
        late = history.changes[0]
        history.changed(late)
        history.check_bound_once_and_whole()
        again = json.loads(json.dumps(late.pod))
        again["metadata"]["uid"] = "another"
        history.changed(type(late)("MODIFIED", again))
        with pytest.raises(AssertionError, match="a: "):
            history.check_bound_once_and_whole()
