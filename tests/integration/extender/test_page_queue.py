"""The live page lists Pending pods in the order of the queue, with their positions."""

import pytest

from extender.page import cluster_feed
from gpushare.contract import GATE_ADMISSION
from tests.browser import Page, resize
from tests.builders import pod

pytestmark = pytest.mark.integration

# Name, and what stands beside it, of each row.
ROWS = """
const rows = [...document.querySelectorAll("#waiting .row")];
rows.sort((a, b) => a.getAttribute("aria-rowindex") - b.getAttribute("aria-rowindex"));
return rows.map(({ children: [name, asks] }) => [name.firstChild.innerText, asks.innerText]);
"""
# The parts of rows that stick out of the page.
OUTSIDE = """
const cells = [...document.querySelectorAll("#waiting .row > *")];
return cells.filter((each) => each.getBoundingClientRect().right > innerWidth + 1).length;
"""


@pytest.fixture
def page(driver, stage, monkeypatch):
    monkeypatch.setattr(cluster_feed, "PLACES_SECONDS", 0.1)
    stage.populate("t4", 1)

    def lead():
        stage.cluster.scheduling.gangs.admits = True

    stage.do(lead)
    for gang, minutes in (("young", 3), ("old", 8)):
        for number in range(2):
            name = f"{gang}-{number}"
            stage.add_member(name, gang, 2, 80_000, minutes=minutes, gate=GATE_ADMISSION)
    return Page(driver, stage.origin).open()


def rows(page):
    return [(name, asks.rpartition(" · ")[2]) for name, asks in page.run(ROWS)]


def test_pending_pods_are_listed_in_the_order_of_the_queue_and_follow_it(page, stage):
    listed = [("Gang old", "position 1"), ("Gang young", "position 2")]
    page.wait("the positions", lambda: rows(page) == listed)
    for number in range(2):
        stage.do(stage.cluster.pod_deleted, pod(f"old-{number}"))
    page.wait("the others", lambda: rows(page) == [("Gang young", "position 1")])
    assert page.is_the_first


def test_the_dialog_of_a_pod_says_its_place(page):
    page.open("pod=default/young-0")
    page.wait("the position", lambda: "Its gang has position 2 of 2 in the queue" in page.detail)


def test_places_fit_beside_long_names_on_narrow_screens(page, stage, driver):
    for number in range(2):
        stage.add_member(f"{'long-name-' * 5}{number}", "long", 2, 80_000, gate=GATE_ADMISSION)
    resize(driver, 390, 844)
    try:
        page.open("view=pending")
        page.wait("the positions", lambda: len(rows(page)) == 3 and "position 3" in str(rows(page)))
        assert page.run(OUTSIDE) == 0
    finally:
        resize(driver, 1440, 1400)
