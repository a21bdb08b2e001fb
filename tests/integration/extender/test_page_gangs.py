"""The live page shows gangs: members, phase, zone, age and the sentence."""

import pytest

from extender.page import cluster_feed
from gpushare.contract import GATE_ADMISSION
from tests.browser import Page, resize

pytestmark = pytest.mark.integration

# Name, namespace, members and state of each, and the sentence.
ROWS = """
return Array.from(document.querySelectorAll("#gang-table tbody"), ({ rows: [first, second] }) => [
  ...Array.from(first.cells[0].children, (each) => each.innerText),
  first.cells[1].innerText,
  first.cells[2].innerText,
  second.innerText,
]);
"""
# Name, and what stands beside it, of each row of a Pending pod or gang.
ASKS = """
return Array.from(document.querySelectorAll("#waiting .row"),
  ({ children: [name, asks] }) => [name.firstChild.innerText, asks.innerText]);
"""
SEEN = "return document.getElementById('gangs').checkVisibility()"
TEXT = "return document.getElementById(arguments[0]).innerText"
LAST_IS_IN_SIGHT = """
const [box, last] = ["#gang-box", "#gang-table tbody:last-child"].map(
  (each) => document.querySelector(each).getBoundingClientRect());
return last.bottom <= box.bottom;
"""
# The parts of gangs that stick out of the table, and of the table that stick out of the page.
OUTSIDE = """
const box = document.querySelector(".gang-table").getBoundingClientRect();
const cells = [...document.querySelectorAll("#gang-table td, #gang-table th")];
return cells.filter((each) => each.getBoundingClientRect().right > box.right + 1).length
  + (box.right > innerWidth + 1);
"""


def gangs(page):
    return [[" ".join(text.split()) for text in row] for row in page.run(ROWS)]


def llama(page):
    return next((each for each in gangs(page) if each[0] == "llama"), [""] * 5)


def test_without_gangs_nothing_is_shown(driver, stage):
    stage.populate("t4", 1)
    page = Page(driver, stage.origin).open()
    page.wait("the node", lambda: page.nodes)
    assert not page.run(SEEN)


def test_gangs_show_what_they_wait_for_and_placed_ones_come_last(page):
    page.wait("the gangs", lambda: len(gangs(page)) == 2)
    waiting, placed = gangs(page)
    assert waiting[:3] == ["etl", "default", "0 of 1"]
    assert waiting[3] == "waiting for members 4 min"
    assert waiting[4].startswith("Waiting for 2 of 3 members; 1 exists. If no more")
    assert placed == ["bert", "default", "2 of 2", "placed 1 h", "Placed: 2 of 2."]
    assert page.run(TEXT, "gangs-title") == "Gangs 2"


def test_a_gang_that_starts_moves_on_before_the_eyes_of_viewers(page, stage):
    for number in range(2):
        stage.add_member(f"llama-{number}", "llama", 2, 80_000, gate=GATE_ADMISSION)
    page.wait("the gang to be complete", lambda: llama(page)[3].startswith("waiting for room"))
    assert llama(page)[4] == "Waiting for a plan for 2 x 78.2 GiB."
    page.wait("its row", lambda: llama(page)[4] in page.waiting.get("Gang llama", ""))
    assert not any(name.startswith("llama-") for name in page.waiting)
    for number in range(2):
        stage.add_member(f"llama-{number}", "llama", 2, 2048, on="gke-t4-06", card=number)
    page.wait("it to be placed", lambda: llama(page)[3].startswith("placed"))
    assert page.is_the_first


def test_a_gang_of_64_is_one_row_among_the_pending_pods_and_names_its_members(page, stage):
    for number in range(64):
        stage.add_member(f"w-{number}", "large", 64, 80_000, gate=GATE_ADMISSION)
    title = "return document.getElementById('waiting-title').innerText"
    page.wait("its pods", lambda: page.run(title) == "Pending pods 68, 64 in 1 gang")
    assert [name for name in page.waiting if name.startswith("w-")] == []
    row = next(asks for name, asks in page.run(ASKS) if name == "Gang large")
    assert row.startswith("64 pods · 5,000 GiB in all")
    page.filter("large")
    page.wait("its row alone", lambda: list(page.waiting) == ["Gang large"])
    assert page.run(title) == "Pending pods 64 of 68, 64 in 1 gang"
    page.open("pod=default/w-7")
    page.wait("the others", lambda: "other Pending pods of gang large: w-0" in page.detail)
    assert "and 43 more" in page.detail


def test_the_filter_finds_gangs_too(page):
    page.wait("the gangs", lambda: len(gangs(page)) == 2)
    page.filter("bert")
    page.wait("one gang", lambda: [each[0] for each in gangs(page)] == ["bert"])
    assert page.run(TEXT, "gangs-title") == "Gangs 1 of 2"
    page.open("ns=serving")
    assert gangs(page) == []
    assert page.run(TEXT, "gangs").split("\n\n") == ["Gangs 0 of 2", "No gang matches."]


def test_a_screen_reader_gets_a_table_of_gangs_in_a_region_of_their_own(page):
    page.wait("the gangs", lambda: len(gangs(page)) == 2)
    regions = [name for role, name in page.accessible() if role == "region"]
    assert regions == ["Overview", "Nodes 14", "Gangs 2", "Pending pods 4"]
    found = page.accessible("table")
    assert found[0] == ("table", "Gangs 2")
    heads = [name for role, name in found if role == "columnheader"]
    assert heads == ["Gang", "Bound", "State"]
    assert [name for role, name in found if role == "rowheader"] == ["etl default", "bert default"]
    cells = [name for role, name in found if role == "cell"]
    assert cells[-3:] == ["2 of 2", "placed 1 h", "Placed: 2 of 2."]


def test_the_keys_scroll_long_lists_of_gangs(driver, stage):
    for number in range(30):
        stage.add_member(f"p{number}", f"gang-{number:02}", 2, None, gate=GATE_ADMISSION)
    page = Page(driver, stage.origin).open()
    page.wait("the gangs", lambda: len(gangs(page)) == 30)
    page.press("/", "ESCAPE", "TAB")
    while page.focused != "gang-box":
        page.press("TAB")
    page.press("END")
    page.wait("the last gang", lambda: page.run(LAST_IS_IN_SIGHT))


def test_more_gangs_than_are_sent_are_counted(driver, stage, monkeypatch):
    monkeypatch.setattr(cluster_feed, "MOST_GANGS", 3)
    for number in range(5):
        stage.add_member(f"p{number}", f"gang-{number}", 2, None, gate=GATE_ADMISSION)
    page = Page(driver, stage.origin).open()
    page.wait("the gangs", lambda: len(gangs(page)) == 3)
    assert page.run(TEXT, "gangs-title") == "Gangs 3 of 5"
    assert "2 more are not sent" in page.run(TEXT, "more-gangs")


@pytest.mark.parametrize("size", [(1440, 900), (820, 1180), (390, 844)], ids=str)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_long_names_and_sentences_fit_everywhere_and_are_accessible(
    driver, stage, axe, size, theme
):
    stage.populate("t4", 2)
    for number in range(30):
        name = f"{number:02}-{'long-name-' * 5}"
        stage.add_member(name, f"{'gang-' * 11}{number}", number % 3, None, gate=GATE_ADMISSION)
    page = Page(driver, stage.origin)
    page.prefer(prefers_color_scheme=theme, prefers_reduced_motion="reduce")
    resize(driver, *size)
    try:
        page.open("view=pending")
        page.wait("the gangs", lambda: len(gangs(page)) == 30)
        assert page.run(SEEN)
        assert page.run(OUTSIDE) == 0
        assert page.violations(axe) == []
    finally:
        resize(driver, 1440, 1400)
