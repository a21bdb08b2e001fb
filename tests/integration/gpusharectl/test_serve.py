"""``gpushare simulate --serve`` in a real browser: the steps, their URLs, and its end."""

import signal
import subprocess
from contextlib import contextmanager

import pytest

from localcluster.wait import patient
from tests.browser import Page, chromium
from tests.cluster.command_line import ENDS_BY_SIGINT, PROGRAM
from tests.unit.gpusharectl.simulate import dumps

pytestmark = pytest.mark.integration

PAGE = "/gpushare-scheduler/page"
NOT_SIMULATED = """
kind: Node
metadata: {name: n1}
gpus: 1 x 16
---
kind: Pod
metadata: {name: amd}
spec:
  containers: [{name: main, resources: {limits: {aliyun.com/gpu-mem: 4, amd.com/gpu: 1}}}]
"""
CLICK = "document.getElementById(arguments[0]).click()"


@pytest.fixture(scope="module")
def driver(browser):
    with chromium(browser) as made:
        yield made


@contextmanager
def playing(driver, *files):
    words = [*ENDS_BY_SIGINT, *PROGRAM, "simulate", *files, "--serve", "--port=0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            made = Page(driver, process.stdout.readline().strip().removesuffix(PAGE))
            yield made
        finally:
            process.send_signal(signal.SIGINT)
        assert made.complaints() == []
        assert process.wait(timeout=patient(60)) == 0


@pytest.fixture
def page(driver):
    with playing(driver, "--example", "vllm") as made:
        yield made


def where(page):
    return page.run("return document.getElementById('player-where').textContent")


def test_steps_are_played_and_each_has_a_url(page, axe):
    page.prefer(prefers_color_scheme="dark", prefers_reduced_motion="reduce")
    page.open()
    page.wait("the first step", lambda: where(page) == "step 1 of 3, after 0s")
    chart = page.run("return document.getElementById('history-text').textContent")
    assert chart == "It has one value for each step."
    page.run(CLICK, "player-next")
    page.wait("the Pending pod", lambda: "llama-new" in page.waiting)
    assert page.place == "step=2"
    page.picture("simulate-page.png", height=460)
    assert page.violations(axe) == []
    page.open("step=2&pod=default/llama-new")
    page.wait("why", lambda: "Nearest nodes" in page.detail)
    page.press("ESCAPE")
    page.wait("no dialog", lambda: page.place == "step=2")
    page.run(CLICK, "player-next")
    page.wait("its share", lambda: "default/llama-new" in page.shares)
    page.driver.back()
    page.wait("the step before", lambda: where(page).startswith("step 2"))
    page.run(CLICK, "player-play")
    page.wait("the last step", lambda: where(page).startswith("step 3"))


def test_the_url_of_a_longer_simulation_leads_to_the_steps_of_this_one(page):
    page.open("step=99")
    page.wait("the last step", lambda: where(page).startswith("step 3 of 3"))
    page.run(CLICK, "player-back")
    page.wait("the step before", lambda: where(page).startswith("step 2"))


def test_a_cluster_that_does_not_share_its_gpus_is_shown_today_and_shared(driver, tmp_path, axe):
    file = tmp_path / "cluster.json"
    nodes = [dumps.node(name, 1, labels=dumps.labels(1, 81920)) for name in ("gpu-2", "gpu-10")]
    pods = [dumps.pod("a", "gpu-2", gpu=1), dumps.pod("b", "gpu-10", gpu=1)]
    file.write_bytes(dumps.dump(*nodes, *pods, dumps.pod("waits", gpu=1)))
    with playing(driver, str(file)) as page:
        page.open()
        page.wait("today", lambda: where(page) == "step 1 of 2, today")
        assert "2 pods use 2 of 2 GPUs whole" in happened(page)
        assert page.waiting == {"waits": "requests 1 whole GPU; none is idle"}
        page.run(CLICK, "player-last")
        page.wait("shared", lambda: where(page) == "step 2 of 2, shared by memory")
        assert "Then 1 GPU could be given back" in happened(page)
        assert page.waiting == {}
        assert {"ml/a", "ml/b", "ml/waits"} <= set(page.shares)
        assert page.violations(axe) == []


def test_a_single_step_has_no_buttons(driver, tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text(NOT_SIMULATED)
    with playing(driver, str(file)) as page:
        page.open()
        page.wait("the step", lambda: "n1" in page.nodes)
        hidden = "return document.getElementById('player-buttons').checkVisibility()"
        assert not page.run(hidden)


def happened(page):
    return page.run("return document.getElementById('player-happened').innerText")


def test_what_is_not_simulated_is_said_before_the_page_is_served(tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text(NOT_SIMULATED)
    words = [*ENDS_BY_SIGINT, *PROGRAM, "simulate", str(file), "--serve", "--port=0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True) as process:
        told = [process.stderr.readline() for _ in range(2)]
        assert told[0].startswith("Not simulated here: resources that no node offers")
        assert told[1] == "Note: default/amd: not simulated: amd.com/gpu\n"
        assert PAGE in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=patient(60)) == 0
