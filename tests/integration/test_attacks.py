"""The same attacks on every listener of all programs: each answers others meanwhile.

A new listener has to be added to LISTENERS.
"""

import ast
import re
import socket
import ssl
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import yaml
from yarl import URL

from bench.program import cpu_seconds
from gpushare.contract import EXTENDER_PREFIX
from gpushare.live_page.files import PAGE
from localcluster.gpushare import ROOT
from localcluster.wait import wait_until
from tests.cluster.command_line import PROGRAM
from tests.fakes.certificates import certificate
from tests.integration.deviceplugin.program import NOBODY
from tests.unit.extender.decisions.test_scheduler_name import review

pytestmark = pytest.mark.integration

# Each with a path that anybody may get, and one that takes a body.
LISTENERS = {
    "deciding": ("/healthz", f"{EXTENDER_PREFIX}/filter"),
    "former": ("/healthz", f"{EXTENDER_PREFIX}/filter"),
    "decidingTls": ("/healthz", f"{EXTENDER_PREFIX}/filter"),
    "replicas": (f"{EXTENDER_PREFIX}/filter", f"{EXTENDER_PREFIX}/filter"),
    "reading": ("/healthz", f"{EXTENDER_PREFIX}/what-if"),
    "admission": (f"{EXTENDER_PREFIX}/admission", f"{EXTENDER_PREFIX}/admission"),
    "plugin": ("/healthz", "/healthz"),
    "page": (PAGE, PAGE),
    "simulate": (PAGE, PAGE),
}
MUTUAL = {"decidingTls", "replicas"}
ENCRYPTED = MUTUAL | {"reading", "admission"}
ATTACKER, OTHER = "127.0.0.2", "127.0.0.3"
SECONDS = 60.0
MIB = 2**20
POD = {"schedulerName": "default-scheduler", "containers": [{}]}
_LISTENING = {"AppRunner", "ServerRunner", "TCPSite", "SockSite", "UnixSite", "create_server",
              "start_server", "add_insecure_port", "add_secure_port"}  # fmt: skip


@dataclass(frozen=True)
class Attacked:
    """One listener of a running program."""

    name: str
    port: int
    process: int
    authority: Path
    secret: str = ""  # the first part of the command line's paths

    @property
    def harmless(self) -> str:
        return self.secret + LISTENERS[self.name][0]

    @property
    def takes_a_body(self) -> str:
        return self.secret + LISTENERS[self.name][1]

    def connect(self, source: str = ATTACKER) -> socket.socket:
        """Return a connection that is ready for a request."""
        made = socket.create_connection(("127.0.0.1", self.port), SECONDS, (source, 0))
        if self.name not in ENCRYPTED:
            return made
        context = ssl.create_default_context(cafile=str(self.authority))
        if self.name in MUTUAL:
            context.load_cert_chain(self.authority.with_name("caller.crt"),
                                    self.authority.with_name("caller.key"))  # fmt: skip
        return context.wrap_socket(made, server_hostname="127.0.0.1")

    def head(self, method: str, path: str, *headers: str) -> bytes:
        host = f"Host: 127.0.0.1:{self.port}"
        return "\r\n".join([f"{method} {path} HTTP/1.1", host, *headers, "", ""]).encode()

    def is_served(self) -> None:
        """Assert that another caller gets the answer that it gets without an attack."""
        body = b"{}" if "POST" in self.usual else b""
        if self.name == "admission":
            body = review(POD)
        with self.connect(OTHER) as caller:
            method = self.usual.split()[0]
            caller.sendall(self.head(method, self.harmless, f"Content-Length: {len(body)}") + body)
            assert status(caller) == int(self.usual.split()[1])

    @property
    def usual(self) -> str:
        """The method and the status of a harmless request; no extender here has a cluster."""
        return {"replicas": "POST 503", "admission": "POST 200"}.get(self.name, "GET 200")

    def worked(self) -> float:
        """Return the processor time in seconds that the program has used."""
        return cpu_seconds(self.process)


def received(caller: socket.socket) -> bytes:
    """Return all that the listener sends until it closes the connection."""
    found = b""
    with suppress(ConnectionError, ssl.SSLError):
        while part := caller.recv(MIB):
            found += part
    return found


def status(caller: socket.socket) -> int:
    """Return the status of the next answer; 0 if the connection is closed instead."""
    found = b""
    with suppress(ConnectionError, ssl.SSLError):
        while b"\r\n" not in found and (part := caller.recv(4096)):
            found += part
    return int(found.split()[1]) if found else 0


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()  # the plugin's process ends the one that serves


def extender_configuration(folder: Path, numbers: dict[str, int]) -> Path:
    """Write a configuration with every listener, for an API server that does not answer."""
    (folder / "kubeconfig").write_text(NOBODY)
    own = {"certificate": str(folder / "server.crt"), "key": str(folder / "server.key")}
    mutual = {**own, "authority": str(folder / "authority.crt"), "allowedNames": ["caller"]}
    place = {name: {"host": "127.0.0.1", "port": port} for name, port in numbers.items()}
    listen = {
        "deciding": place["deciding"],
        "decidingTls": {**place["decidingTls"], "tls": mutual},
        "reading": {**place["reading"], "access": "review", "tls": own},
        "admission": {**place["admission"], "tls": own},
    }
    election = {"address": place["replicas"], "tls": mutual}
    whole = {
        "kubeconfig": str(folder / "kubeconfig"), "listen": listen, "leaderElection": election,
    }  # fmt: skip
    file = folder / "extender.yaml"
    file.write_text(yaml.safe_dump(whole))
    return file


@contextmanager
def ready_extender(folder: Path, port: int) -> Iterator[int]:
    """Serve what the command line needs of an extender; those here are not ready."""
    files = folder / "ready"
    (files / PAGE.removeprefix("/")).parent.mkdir(parents=True)
    for path in ("readyz", PAGE.removeprefix("/")):
        (files / path).touch()
    words = ("-m", "http.server", str(port), "--bind=127.0.0.1", f"--directory={files}")
    with started(sys.executable, *words):
        wait_until("the files to be served", partial(refused, port), seconds=SECONDS)
        yield port


def refused(port: int) -> str | None:
    try:
        socket.create_connection(("127.0.0.1", port), SECONDS).close()
    except OSError as err:
        return str(err)
    return None


@pytest.fixture(scope="module")
def attacked(
    tmp_path_factory: pytest.TempPathFactory, ports: Iterator[int]
) -> Iterator[dict[str, Attacked]]:
    """Run all programs with all of their listeners."""
    folder = tmp_path_factory.mktemp("attacked")
    authority = certificate(folder, "authority")
    for name in ("server", "caller"):
        certificate(folder, name, signed_by=authority)
    found: dict[str, Attacked] = {}
    with ExitStack() as stack:

        def serve(process: subprocess.Popen[str], *, secret: str = "", **numbers: int) -> None:
            for name, port in numbers.items():
                found[name] = Attacked(name, port, process.pid, authority, secret)
                wait_until(f"{name} to answer", partial(silent, found[name]), seconds=SECONDS)

        of_extender = {
            name: next(ports)
            for name in ("deciding", "decidingTls", "replicas", "reading", "admission")
        }
        file = extender_configuration(folder, of_extender)
        words = (sys.executable, "-m", "extender", f"--config={file}")
        serve(stack.enter_context(started(*words)), **of_extender)
        # The same listener and application on another port, which only one program here can have.
        found["former"] = found["deciding"]
        number = next(ports)
        words = (
            sys.executable, "-m", "deviceplugin", "--node-name=n", "--simulated-gpus=16384",
            f"--kubeconfig={folder}/kubeconfig", f"--device-plugin-dir={folder}",
            f"--cdi-dir={folder}/cdi", f"--state-dir={folder}/state",
            "--http-host=127.0.0.1", f"--http-port={number}",
        )  # fmt: skip
        serve(stack.enter_context(started(*words)), plugin=number)
        server = (
            f"--server=http://127.0.0.1:{stack.enter_context(ready_extender(folder, next(ports)))}"
        )
        for name, command in {
            "page": ("page", server, f"--kubeconfig={folder / 'kubeconfig'}"),
            "simulate": ("simulate", "--example=vllm", "--serve"),
        }.items():
            number = next(ports)
            process = stack.enter_context(started(*PROGRAM, *command, f"--port={number}"))
            assert process.stdout is not None
            url = URL(process.stdout.readline().strip())
            assert url.port == number
            serve(process, secret=url.path.removesuffix(PAGE), **{name: number})
        yield found


def silent(one: Attacked) -> str | None:
    try:
        one.is_served()
    except (OSError, AssertionError) as err:
        return repr(err)
    return None


@pytest.fixture(params=LISTENERS)
def listener(request: pytest.FixtureRequest, attacked: dict[str, Attacked]) -> Iterator[Attacked]:
    found = attacked[request.param]
    yield found
    found.is_served()


def test_every_listener_of_the_programs_is_attacked_here() -> None:
    """All come from one module, which gives each of them its limits."""
    named, elsewhere = set[str](), set[str]()
    for package in ("gpushare", "extender", "deviceplugin", "gpusharectl"):
        for file in (ROOT / package).rglob("*.py"):
            for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if not isinstance(call, ast.Call):
                    continue
                called = getattr(call.func, "attr", getattr(call.func, "id", ""))
                if called in {"Listener", "served"} or ast.unparse(call.func) == "replace":
                    words = [each.value for each in call.keywords if each.arg == "name"]
                    first = call.args[:1] if called == "Listener" else []
                    named |= {
                        str(each.value)
                        for each in (*first, *words)
                        if isinstance(each, ast.Constant) and each.value
                    }
                elif called in _LISTENING and not ast.unparse(call).count("(f'unix:"):
                    elsewhere.add(str(file.relative_to(ROOT)))
    assert elsewhere == {"gpushare/http_server/listeners.py"}
    assert named == set(LISTENERS)


def bomb() -> bytes:
    """Return a gzip of 256 MiB in 256 KB."""
    made = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(made.compress(bytes(MIB)) for _ in range(256)) + made.flush()


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
def test_a_compressed_body_is_rejected_and_not_decompressed(
    listener: Attacked, encoding: str
) -> None:
    body = bomb()
    began = time.process_time()
    zlib.decompress(body, 31)
    worth, before = time.process_time() - began, listener.worked()
    for path in (listener.takes_a_body, "/nothing"):
        with listener.connect() as caller:
            head = listener.head(
                "POST", path, f"Content-Encoding: {encoding}", f"Content-Length: {len(body)}"
            )
            caller.sendall(head + body[:1000])
            assert status(caller) == 415
            with suppress(OSError):
                caller.sendall(body[1000:])
    assert listener.worked() - before < worth


def test_the_rest_of_a_body_that_nobody_wants_is_not_read(listener: Attacked) -> None:
    sent = 0
    with listener.connect() as caller:
        caller.sendall(listener.head("POST", "/nothing", f"Content-Length: {2**40}"))
        part = bytes(MIB)
        with suppress(OSError):
            while sent < 2**30:
                caller.sendall(part)
                sent += len(part)
        assert status(caller) in {
            401,
            403,
            404,
            0,
        }  # 0: what was sent too late resets the connection
    assert sent < 64 * MIB


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 300 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\0\0\r\n\r\n",
    ],
    ids=["headers", "header", "line", "length", "chunks", "bytes"],
)
def test_an_invalid_request_ends_its_own_connection(listener: Attacked, sent: bytes) -> None:
    with listener.connect() as caller:
        with suppress(OSError):
            caller.sendall(sent)
        found = received(caller)
    assert found.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")) or found == b""
    assert not re.search(rb"aiohttp|Python", found)


def test_unfinished_heads_of_one_address_leave_room_for_others(listener: Attacked) -> None:
    with ExitStack() as stack:
        for _ in range(130):
            with suppress(OSError):  # it may be full of this address
                stack.enter_context(listener.connect()).sendall(b"POST /x HTTP/1.1\r\nX: ")
        listener.is_served()


def test_bodies_that_do_not_come_leave_room_for_others(listener: Attacked) -> None:
    with ExitStack() as stack:
        for number in range(96):
            with suppress(OSError):
                caller = stack.enter_context(listener.connect(f"127.0.1.{1 + number % 8}"))
                head = listener.head("POST", listener.takes_a_body, "Content-Length: 1000")
                caller.sendall(head + b"{")
        listener.is_served()


def test_requests_whose_answers_nobody_takes_leave_room_for_others(listener: Attacked) -> None:
    with ExitStack() as stack:
        for _ in range(16):
            with suppress(OSError):
                caller = stack.enter_context(listener.connect())
                caller.setblocking(False)
                many = listener.head("GET", "/metrics") * 1000
                with suppress(BlockingIOError, ssl.SSLWantWriteError):
                    caller.send(many)
        listener.is_served()


def test_a_caller_that_hangs_up_at_once_leaves_no_trace(listener: Attacked) -> None:
    for _ in range(300):
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", listener.port), SECONDS, (ATTACKER, 0)).close()
    listener.is_served()


def test_the_plugin_has_more_files_than_the_usual_limit(attacked: dict[str, Attacked]) -> None:
    """The command line's programs are the user's own."""
    for name in ("plugin", "deciding"):
        limits = Path(f"/proc/{attacked[name].process}/limits").read_text()
        (soft, hard) = re.search(r"Max open files +(\d+) +(\d+)", limits).groups()
        assert soft == str(min(int(hard), 65_536))
