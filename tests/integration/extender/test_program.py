"""The whole program with its file and its signals, without an API server."""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from extender.binding.timing import WRITE_SECONDS
from localcluster.wait import patient, wait_until
from tests.metrics_table import differences, rows

pytestmark = pytest.mark.integration

NOBODY = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "c",
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    "users": [{"name": "u", "user": {}}],
}


PIDFD_GETFD = 438


class Program:
    """The program; it ends with the context."""

    def __init__(self, folder, deciding, reading, server="http://127.0.0.1:9"):
        self.folder, self.deciding, self.reading = folder, deciding, reading
        kubeconfig = {**NOBODY, "clusters": [{"name": "c", "cluster": {"server": server}}]}
        (folder / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
        self.configure()
        with (folder / "log").open("w") as log:
            flag = f"--config={folder / 'extender.yaml'}"
            self.process = subprocess.Popen([sys.executable, "-m", "extender", flag], stderr=log)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def configure(self, **settings):
        listen = {
            "deciding": {"host": "127.0.0.1", "port": self.deciding},
            "reading": {"host": "127.0.0.1", "port": self.reading},
        }
        whole = {"kubeconfig": str(self.folder / "kubeconfig"), "listen": listen, **settings}
        (self.folder / "extender.yaml").write_text(yaml.safe_dump(whole))

    def said(self, message):
        lines = (self.folder / "log").read_text().splitlines()
        return [found for found in map(json.loads, lines) if found["message"] == message]

    def reload(self, message):
        before = len(self.said(message))
        self.process.send_signal(signal.SIGHUP)
        wait_until(
            message, lambda: None if len(self.said(message)) > before else "not said", seconds=10
        )
        return self.said(message)[-1]


def page(port, path, **headers):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=patient(10)) as answer:  # noqa: S310 - our own address
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as err:
        with err:
            return err.code, err.read().decode()
    except OSError as err:
        return 0, str(err)


@pytest.fixture
def program(tmp_path, ports):
    with Program(tmp_path, next(ports), next(ports)) as made:
        for port in (made.deciding, made.reading):
            wait_until(
                "the program to answer",
                lambda port=port: None if page(port, "/healthz")[0] == 200 else "silent",
                seconds=60,
            )
        yield made


def test_the_program_reloads_its_file_at_sighup_and_ends_at_sigterm(program):
    program.configure(logLevel="debug", limits={"bind": 3}, memoryUnit="MiB")
    assert program.reload("configuration reloaded")["changed"] == ["limits.bind", "logLevel"]
    assert program.said("these changes need a restart")[-1]["left"] == ["memoryUnit"]
    program.configure(logLevel="loud")
    assert "logLevel (line" in program.reload("configuration not reloaded")["why"]
    program.process.send_signal(signal.SIGTERM)
    assert program.process.wait(timeout=patient(20)) == 0


def test_without_the_api_server_only_health_is_served(program):
    for port in (program.deciding, program.reading):
        assert page(port, "/readyz")[0] == 503
        assert page(port, "/version")[0] == 200
    inspect = "/gpushare-scheduler/inspect"
    assert page(program.deciding, inspect)[0] == 503
    assert page(program.reading, inspect, Authorization="Bearer x")[0] == 503
    assert page(program.reading, "/metrics")[0] == 401
    # The token cannot be checked, so the request is denied.
    assert page(program.reading, "/metrics", Authorization="Bearer x")[0] == 503


def test_the_documented_metrics_are_those_of_a_running_extender(program):
    status, text = page(program.deciding, "/metrics")
    assert status == 200
    assert differences(text, rows("Extender")) == []
    # From the start: an alert fires if this does not grow.
    assert 'gpushare_extender_requests_total{outcome="none",verb="filter"} 0.0' in text


def sockets_to(pid, port):
    """Yield duplicates of a process's connections to a port."""
    process, take = os.pidfd_open(pid), ctypes.CDLL(None, use_errno=True).syscall
    try:
        for each in Path(f"/proc/{pid}/fd").iterdir():
            handle = take(PIDFD_GETFD, process, int(each.name), 0)
            if handle < 0:
                continue  # closed in the meantime
            try:
                found = socket.socket(fileno=handle)
            except OSError:  # not a socket
                os.close(handle)
                continue
            with found:
                if found.family == socket.AF_INET and has_peer(found, port):
                    yield found
    finally:
        os.close(process)


def has_peer(found, port):
    try:
        return found.getpeername()[1] == port
    except OSError:
        return False


def test_requests_to_the_api_server_are_not_delivered_after_the_time_of_a_write(tmp_path, ports):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(patient(20))
        port = server.getsockname()[1]
        address = f"http://127.0.0.1:{port}"
        with Program(tmp_path, next(ports), next(ports), address) as program, server.accept()[0]:
            limits = [
                found.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                for found in sockets_to(program.process.pid, port)
            ]
    assert limits
    assert all(0 < each < WRITE_SECONDS * 1000 for each in limits)
