"""The live page of a real cluster in a real browser: what happens is seen without a reload."""

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localcluster.gpushare import EXTENDER, Gpushare
from localcluster.wait import patient
from localcluster.workloads import Workloads, pod
from tests.browser import Page, chromium
from tests.cluster.command_line import ENDS_BY_SIGINT, PROGRAM
from tests.cluster.test_reading import token_of

pytestmark = pytest.mark.cluster

NODES = ["n1", "n2", "n3", "n4"]
HALF, THREE_QUARTERS = 8138, 12207
READING = 29768
SIGN_IN = "return document.getElementById('sign-in').innerText"
NUMBER_OF_NODES = "return document.getElementById('sum-nodes').textContent"


@pytest.fixture(scope="module")
def page(browser: Path) -> Iterator[Page]:
    with chromium(browser) as driver:
        yield Page(driver, "http://{}:{}".format(*EXTENDER))


def test_the_page_follows_shares_and_pending_pods(
    gpushare: Gpushare, pods: Workloads, page: Page, figures: Callable[[str], None]
):
    page.open()
    page.wait("the cluster", lambda: list(page.nodes) == NODES)
    began = time.monotonic()
    pods.create(pod("moves", HALF, node="n2"))
    page.wait("the share on n2", lambda: page.shares.get("default/moves", ("",))[0] == "n2")
    figures(f"a share was on the screen {time.monotonic() - began:.2f} s after its pod was made")
    assert page.shares["default/moves"] == gpushare.card_of("moves")
    pods.delete("moves", grace=1)
    page.wait("no share", lambda: "default/moves" not in page.shares)
    pods.create(pod("moves", HALF, node="n3"))
    page.wait("the share on n3", lambda: page.shares.get("default/moves", ("",))[0] == "n3")

    pods.run(*(pod(f"large-{i}", THREE_QUARTERS, node="n1") for i in range(2)))
    pods.create(pod("waits", HALF, node="n1"))
    sentence = "the most free on one GPU that it may use is 3.9 GiB"
    page.wait("the reason", lambda: sentence in page.waiting.get("waits", ""))
    page.run("document.querySelector('#waiting .row').click()")
    page.wait("what is known of it", lambda: "Nearest nodes" in page.detail)
    page.press("ESCAPE")
    pods.delete("large-0", grace=1)
    page.wait("the pod to be bound", lambda: page.shares.get("default/waits", ("",))[0] == "n1")
    page.wait("no pod to wait", lambda: page.waiting == {})
    assert page.is_the_first
    assert page.complaints() == []


def test_the_stream_needs_an_extender_and_the_right_to_list_pods(gpushare: Gpushare, page: Page):
    page.open()
    gpushare.cluster.stop("extender")
    page.wait("the loss to be said", lambda: page.state == "not live")
    gpushare.start_extender(listen={"reading": {"host": "127.0.0.1", "port": READING}})
    try:
        gpushare.wait_ready()
        page.wait("the page to be live again", lambda: page.state == "live")
        assert page.is_the_first
        reviewed = Page(page.driver, f"http://127.0.0.1:{READING}").open(live=False)
        for token, wanted in (
            ("", "send a token"),
            (token_of(gpushare, "default", "default"), "may not list pods in all namespaces"),
        ):
            if token:
                reviewed.press(token, "ENTER")
            reviewed.wait("why not", lambda wanted=wanted: wanted in reviewed.run(SIGN_IN))
            assert reviewed.nodes == {}
            assert reviewed.run(NUMBER_OF_NODES) == "\N{EN DASH}"
        reviewed.press(token_of(gpushare, "gpushare-extender"), "ENTER")
        reviewed.wait("the cluster", lambda: list(reviewed.nodes) == NODES)
        assert reviewed.state == "live"
    finally:
        gpushare.restart_extender()


def test_the_command_shows_the_page_on_a_port_of_its_own(gpushare: Gpushare, page: Page):
    kubeconfig, server = gpushare.cluster.kubeconfig, "http://{}:{}".format(*EXTENDER)
    words = ["page", "--port=0", f"--kubeconfig={kubeconfig}", f"--server={server}"]
    command = [*ENDS_BY_SIGINT, *PROGRAM, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        shown = Page(page.driver, url.removesuffix("/gpushare-scheduler/page")).open()
        shown.wait("the cluster", lambda: list(shown.nodes) == NODES)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=patient(60)) == 0
