"""The live page in a real browser: what is visible, what keys do, what a screen reader gets."""

import re
import time
from math import inf
from urllib.parse import quote, urlencode

import pytest
from prometheus_client import REGISTRY

from gpushare.ledger.holds import Claim, Slot
from tests.browser import Page
from tests.integration.extender.fleet import MODELS, gpus

pytestmark = pytest.mark.integration

# The contrast of every visible text with its background, as WCAG defines it.
CONTRASTS = """
const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const rgb = (...colours) => {
  paint.clearRect(0, 0, 1, 1);
  for (const each of colours) { paint.fillStyle = each; paint.fillRect(0, 0, 1, 1); }
  return [...paint.getImageData(0, 0, 1, 1).data].slice(0, 3);
};
const light = (colour) => {
  const line = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const [r, g, b] = colour.map((v) => line(v / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const found = [];
for (const each of document.querySelectorAll("body *:not(.unseen, .unseen *, noscript)")) {
  const text = [...each.childNodes].some((c) => c.nodeType === 3 && c.data.trim());
  if (!text || !each.checkVisibility()) continue;
  const behind = [];
  for (let at = each; at; at = at.parentElement) {
    behind.unshift(getComputedStyle(at).backgroundColor);
  }
  const back = rgb(...behind);
  const front = rgb(...behind, getComputedStyle(each).color);
  const [a, b] = [light(back), light(front)].sort((x, y) => y - x);
  const what = each.className || each.tagName;
  found.push([(a + 0.05) / (b + 0.05), what, each.textContent.slice(0, 40)]);
}
return found.sort((x, y) => x[0] - y[0]);
"""


PAGE_DOWN = """
const list = document.getElementById("nodes"), began = performance.now();
list.dispatchEvent(new KeyboardEvent("keydown", { key: "PageDown" }));
list.offsetHeight;
return performance.now() - began;
"""


def test_shares_appear_and_disappear_and_a_pod_is_pending_until_it_is_bound(page, stage):
    stage.bind("mine", "gke-t4-01", 0, 1000)
    page.wait("the share", lambda: page.shares.get("default/mine") == ("gke-t4-01", 0))
    stage.delete("mine")
    page.wait("no share", lambda: "default/mine" not in page.shares)
    stage.add_pending("mine", 1000)
    page.wait("the pending pod", lambda: "mine" in page.waiting)
    stage.bind("mine", "gke-t4-02", 0, 1000)
    page.wait("the share", lambda: page.shares.get("default/mine") == ("gke-t4-02", 0))
    assert "mine" not in page.waiting
    assert page.is_the_first


def test_states_of_gpus_and_reasons_of_pods_are_text(page):
    labels = {card["label"] for cards in page.nodes.values() for card in cards}
    assert any("unhealthy" in label for label in labels)
    assert any("cordoned" in label for label in labels)
    assert any("reserved 5.9 GiB" in label for label in labels)
    assert any("bound-by-hand on an unknown GPU 2 GiB" in label for label in labels)
    assert (
        "requests 78 GiB on one GPU; the most free on one GPU is 54 GiB"
        in page.waiting["notebook-ines"]
    )
    assert "no reason from kube-scheduler yet" in page.waiting["embedder-5b7d"]


# Where the segments of the first GPU begin and end, in pixels.
EDGES = """
const row = Array.from(document.querySelectorAll("#nodes .row")).find(
  (each) => each.querySelector("strong").textContent === "waits");
return Object.fromEntries(Array.from(row.querySelector(".bar").children, (each) => {
  const { left, right } = each.getBoundingClientRect();
  return [each.classList[1], [left, right]];
}));
"""


FOUND = {
    "gke-t4-03": (["gke-t4-03"], []),
    "tesla": ([f"gke-t4-0{i}" for i in range(1, 7)], []),
    "nvidia l4-02": (["gke-l4-02"], []),
    "bound-by-hand": (["gke-t4-03"], []),
    "secluded": (["gke-t4-06"], []),
    "notebook-INES": ([], ["notebook-ines"]),
    "nothing-of-that": ([], []),
}


def test_the_filter_finds_by_node_pod_namespace_and_model(page, stage):
    stage.bind("a", "gke-t4-06", 1, 100, namespace="secluded")
    page.wait("the share", lambda: "secluded/a" in page.shares)
    for text, (nodes, pods) in FOUND.items():
        page.filter(text)
        page.wait("the rows", lambda nodes=nodes: list(page.nodes) == nodes)
        assert [*page.waiting] == pods
        page.press("ESCAPE", "ESCAPE")
    page.wait("all rows", lambda: len(page.nodes) == 14)


def test_everything_can_be_done_with_the_keys(page):
    page.press("/")
    assert page.focused == "filter"
    page.press("l4", "ARROW_DOWN")
    assert page.focused.startswith("gke-l4-01, 4 GPUs")
    page.press("ARROW_DOWN")
    assert page.focused.startswith("gke-l4-02")
    outline = "return getComputedStyle(document.querySelector('#nodes .active')).outlineStyle"
    assert page.run(outline) == "solid"
    page.press("ENTER")
    page.wait("the node", lambda: "GPU-gke-l4-02-3" in page.detail)
    assert "unhealthy" in page.detail
    assert "On GPU" in page.detail
    page.press("ESCAPE")
    page.wait("no dialog", lambda: page.place == "q=l4")
    assert page.focused.startswith("gke-l4-02")
    page.press("END", "HOME", "PAGE_DOWN", "ARROW_UP")
    assert page.focused.startswith("gke-l4-03")
    page.press("/", "ESCAPE", "ESCAPE", "TAB")
    assert page.focused == "gang-box"
    assert page.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.press("TAB", "TAB")
    assert page.focused.startswith("default/train-llama-0")
    page.press("ENTER")
    page.wait("the reason", lambda: "Nearest nodes" in page.detail)
    assert "requests 120 GiB" in page.detail
    page.press("ESCAPE")
    page.wait("no dialog", lambda: page.detail == "")


def test_an_open_detail_follows_what_changes(page, stage):
    page.filter("gke-t4-01")
    page.press("ARROW_DOWN", "ENTER")
    stage.bind("comes", "gke-t4-01", 0, 100)
    page.wait("the pod", lambda: "comes" in page.detail)
    stage.do(stage.cluster.node_deleted, gpus("gke-t4-01", "t4"))
    # Its pods are still bound to it, on GPUs that are unknown.
    page.wait("no GPUs", lambda: "0 GPUs" in page.detail)


def test_what_is_claimed_is_marked_beside_and_on_top_of_what_is_still_used(page, stage):
    stage.plugins.measures = False  # a label names real use too, once it is known
    stage.do(stage.cluster.node_changed, gpus("waits", "t4"))
    stage.bind("victim", "waits", 0, 12_000)
    slots = (Slot("waits", ("GPU-waits-0",), 14_000),)
    stage.do(stage.cluster.ledger.keep, Claim("winner", slots, inf, 5))
    label = "victim 11.8 GiB, claimed and still used 10.4 GiB, claimed 3.3 GiB"
    page.wait("the claim", lambda: label in page.nodes.get("waits", [{"label": ""}])[0]["label"])
    edges = page.run(EDGES)
    assert edges["shared"][1] == pytest.approx(edges["claimed"][0], abs=1)
    assert edges["pod"][0] < edges["shared"][0] < edges["shared"][1] < edges["claimed"][1] + 1
    page.filter("waits")
    page.press("ARROW_DOWN", "ENTER")
    page.wait("the node", lambda: "Claimed" in page.detail)
    assert "13.7 GiB" in page.detail


def test_a_screen_reader_gets_what_is_visible_and_not_every_change(page, stage):
    page.wait("the rows", lambda: page.nodes and page.waiting)
    found = page.accessible()
    roles = {role for role, _ in found}
    assert {"banner", "main", "contentinfo", "grid", "row", "rowheader", "gridcell"} <= roles
    assert [name for role, name in found if role == "searchbox"] == [
        "Filter by node, pod, gang, namespace or model"
    ]
    assert [name for role, name in found if role == "grid"] == ["Nodes 14", "Pending pods 4"]
    nameless = [role for role, name in found if role in {"cell", "gridcell", "button"} and not name]
    assert nameless == []
    assert all(name for role, name in page.accessible("grid") if role == "row")
    cells = [name for role, name in found if role == "gridcell"]
    assert any(name.startswith("GPU 3 unhealthy ") for name in cells)
    rows = [name for role, name in found if role == "row"]
    assert any(
        "default/train-llama-0, 120 GiB, requests 120 GiB on one GPU" in name for name in rows
    )
    assert "Theme: system" in [name for role, name in found if role == "button"]
    page.run(
        "window.said = []; new MutationObserver(() => said.push("
        "document.getElementById('say').textContent)).observe("
        "document.getElementById('say'), {childList: true})"
    )
    for i in range(5):
        stage.bind(f"p{i}", "gke-t4-01", 0, 10)
    page.wait("the shares", lambda: "default/p4" in page.shares)
    page.filter("t4")
    found = "6 nodes, 0 pending pods, 0 gangs"
    page.wait("the announcement", lambda: found in page.run("return said"))
    assert all("pending pods" in each for each in page.run("return said"))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_has_enough_contrast_in_both_themes(page, theme):
    page.prefer(prefers_color_scheme=theme, prefers_reduced_motion="reduce")
    page.picture(f"page-{theme}.png")
    ratio, where, text = page.run(CONTRASTS)[0]
    assert ratio >= 4.5, (where, text)
    page.run("document.querySelector('#waiting .row').click()")
    page.wait("the reason", lambda: "Nearest nodes" in page.detail)
    ratio, where, text = page.run(CONTRASTS)[0]
    assert ratio >= 4.5, (where, text)


def test_the_system_chooses_the_theme_until_the_user_does(page):
    def is_dark():
        back = page.run("return getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", back)[:3])) < 3 * 128

    assert not is_dark()
    page.prefer(prefers_color_scheme="dark")
    assert is_dark()
    switch = "document.getElementById('theme').click()"
    page.run(switch)
    assert not is_dark()
    page.open()
    assert not is_dark()
    page.run(switch)
    page.prefer(prefers_color_scheme="light")
    assert is_dark()
    page.run(switch)
    assert not is_dark()


def test_there_is_no_motion_if_reduced_motion_is_preferred(page):
    moves = (
        "const style = getComputedStyle(document.querySelector('.cards .segment'));"
        "return [style.animationName, style.transitionDuration]"
    )
    assert page.run(moves) == ["appear", "0.3s, 0.3s"]
    page.prefer(prefers_reduced_motion="reduce")
    assert page.run(moves) == ["none", "0s"]


def test_names_are_never_parsed_as_html(page, stage):
    evil = "<img src=x onerror='window.hacked = 1'><script>window.hacked = 1</script>"
    node, pod = f"a0{evil}", f"{evil}/{evil}"
    stage.plugins.host_mib["__proto__"] = 1
    stage.do(stage.cluster.node_changed, gpus(node, "t4", model=evil))
    stage.bind(evil, node, 0, 1000, namespace=evil)
    stage.bind("neighbor", node, 0, 1000)
    stage.add_pending(f"waits{evil}", 81_000, evil, gate=evil)
    for place, wanted in (
        ({"node": node}, f"GPU-{node}-1"),
        ({"pod": pod}, "Pods on the same GPU"),
        ({"pod": "default/neighbor"}, "Pods on the same GPU"),
        ({"pod": f"default/waits{evil}"}, "Nearest nodes"),
        ({"node": f"un{evil}"}, "It may have been removed"),
        ({"pod": f"un/{evil}"}, "It may have ended"),
    ):
        page.open(urlencode({**place, "ns": evil, "q": evil}, quote_via=quote))
        page.wait(wanted, lambda wanted=wanted: wanted in page.detail)
        assert evil in page.detail
        shown = page.run("return document.body.innerText")
        assert shown.count(evil) > page.detail.count(evil)
        assert page.run("return document.querySelectorAll('[onerror], body script').length") == 0
    page.open()
    page.wait("the pod", lambda: evil in page.waiting.get(f"waits{evil}", ""))
    assert node in page.nodes
    assert page.run("return document.querySelectorAll('[onerror], body script').length") == 0
    assert page.run("return window.hacked") is None


def test_a_lost_connection_is_shown_and_the_page_reconnects(page, stage):
    stage.close()
    page.wait("the loss of the connection", lambda: page.state == "not live")
    assert "the extender" in page.run("return document.getElementById('trouble').innerText")
    assert len(page.nodes) == 14
    stage.bind("meanwhile", "gke-t4-01", 0, 10)
    stage.open()
    page.wait("the page to be live", lambda: page.state == "live")
    page.wait("the change in the meantime", lambda: "default/meanwhile" in page.shares)
    assert page.is_the_first
    page.complaints()  # about the failed connections


def test_a_hidden_tab_disconnects(page, stage):
    def viewers():
        return REGISTRY.get_sample_value("gpushare_extender_viewers")

    page.wait("its only stream", lambda: viewers() == 1)
    page.run(
        "const real = setTimeout;"
        "window.setTimeout = (then, ms) => real(then, ms === 60000 ? 0 : ms);"  # the minute is over
        "Object.defineProperty(document, 'hidden', {get: () => window.isAway, configurable: true});"
        "window.isAway = true; document.dispatchEvent(new Event('visibilitychange'));"
    )
    page.wait("no stream", lambda: viewers() == 0)
    stage.bind("meanwhile", "gke-t4-01", 0, 10)
    page.run("window.isAway = false; document.dispatchEvent(new Event('visibilitychange'));")
    page.wait("the page to be live", lambda: page.state == "live")
    page.wait("the change in the meantime", lambda: "default/meanwhile" in page.shares)


def test_a_thousand_nodes_are_usable(driver, stage, capsys):
    cards = MODELS["a100"][0]
    stage.populate("a100", 1000, 0.4)
    page = Page(driver, stage.origin)
    began = time.perf_counter()
    page.open()
    total = "return document.getElementById('sum-cards').textContent"
    page.wait("all nodes", lambda: page.run(total) == f"{1000 * cards:,}")
    opened = time.perf_counter() - began
    in_sight = page.run("return document.querySelectorAll('.row').length")
    assert in_sight < 40
    page.press("/", "ESCAPE")
    times = [page.run(PAGE_DOWN) for _ in range(20)]
    page.press("END")
    assert page.focused.startswith("gke-a100-1000")
    assert "gke-a100-1000" in page.nodes
    assert page.run("return document.querySelectorAll('.row').length") < 40
    page.filter("gke-a100-500")
    page.wait("the node", lambda: list(page.nodes) == ["gke-a100-500"])
    shown = []
    for i in range(5):
        begun = time.perf_counter()
        stage.bind(f"new-{i}", "gke-a100-500", 7, 10)
        page.wait("the share", lambda name=f"default/new-{i}": name in page.shares)
        shown.append(time.perf_counter() - begun)
    with capsys.disabled():
        print(  # noqa: T201 - for information
            f"\nlive page, 1,000 nodes x {cards} cards: shown after {opened * 1000:.0f} ms, a page"
            f" further drawn in {max(times):.0f} ms at most, a change on the screen after"
            f" {1000 * sum(shown) / len(shown):.0f} ms ({in_sight} rows in the document)"
        )
