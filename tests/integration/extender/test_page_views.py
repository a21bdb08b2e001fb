"""What the live page shows of many nodes: orders, filters, URLs, history, real use."""

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By

from gpushare.quota.namespaces import Namespace
from gpushare.quota.quota import parse
from gpushare.text.amounts import free_gib, needed_gib, used_gib
from tests.browser import Page
from tests.integration.extender.fleet import MODELS, gpus
from tests.unit.extender.server.test_authorization import Reviews

pytestmark = pytest.mark.integration

PRESSED = "return document.getElementById(arguments[0]).getAttribute('aria-pressed')"
CHOOSE = """
const box = document.getElementById(arguments[0]);
box.value = arguments[1];
box.dispatchEvent(new Event("change"));
"""
CLICK = "document.querySelector(arguments[0]).click()"
REFUSED_USE = """
const done = arguments[0], real = window.fetch;
let asked = 0;
window.fetch = async (path, how) => {
  if (!`${path}`.startsWith("usage?node=mine")) return real(path, how);
  asked += 1;
  return new Response("{}", { status: 429 });
};
const frozen = Date.now();
Date.now = () => frozen;
import("/gpushare-scheduler/page/usage.js").then(async ({ Usage }) => {
  const answers = { path: () => "usage", names: () => ["mine"], headers: () => ({}) };
  const usage = new Usage({ ...answers, changed: () => {} });
  for (let time = 0; time < 5; time += 1) await usage.ask();
  done(asked);
});
"""
ASKED_FIRST = """
const asked = performance.getEntriesByType("resource").map((each) => each.name);
return asked.find((name) => name.includes("/usage?"))?.match(/node=/g).length;
"""
COUNT_EXPLANATIONS = """
const real = window.fetch, now = Date.now;
window.explanations = 0;
window.fetch = (path, how) => {
  window.explanations += `${path}`.startsWith("explain/");
  return real(path, how);
};
Date.now = () => now() + 3_600_000;  // an explanation is due again
"""
WRITTEN = """
const [mib, done] = arguments;
import("/gpushare-scheduler/page/format.js").then(({ freeGiB, neededGiB, usedGiB }) => {
  done([freeGiB(mib), neededGiB(mib), usedGiB(mib, mib), usedGiB(mib, mib + 100)]);
});
"""
# Of each GPU in the dialog of a node: what is really used.
USED = """
return Array.from(document.querySelectorAll("#detail tbody tr"), (row) => row.cells[3].innerText);
"""
TEXT = "return document.querySelector(arguments[0]).innerText"
TITLES = "return Array.from(document.querySelectorAll(arguments[0]), (each) => each.title)"


def click(page, selector):
    page.run(CLICK, selector)


def text(page, selector):
    return page.run(TEXT, selector)


def test_amounts_are_gib_and_tooltips_have_exact_units(page, stage):
    stage.bind("mine", "gke-t4-04", 1, 1500)
    page.wait("the share", lambda: "default/mine" in page.shares)
    [title] = page.run(TITLES, "#nodes a[data-key='default/mine']")
    assert title.startswith("default/mine: 1.5 GiB")
    assert title.endswith("(1,500 units of 1 MiB)")
    total = sum(count * units * nodes for (count, units, _), nodes in kinds())
    assert f"of {free_gib(total)}" in text(page, "#sums")


def kinds():
    return zip((MODELS["a100"], MODELS["l4"], MODELS["t4"]), (4, 4, 6), strict=True)


def test_the_page_and_the_command_line_write_the_same_amounts(page):
    for mib in (0, 1, 1023, 1024, 2047, 16_276, 40_500, 60_000, 81_920, 1_023_999, 1_264_000):
        written = [free_gib(mib), needed_gib(mib), used_gib(mib, mib), used_gib(mib, mib + 100)]
        assert page.driver.execute_async_script(WRITTEN, mib) == written


def test_a_full_node_has_no_more_used_than_it_has(page, stage):
    stage.do(stage.cluster.node_changed, gpus("full", "t4"))
    for card in range(2):
        stage.bind(f"all-{card}", "full", card, MODELS["t4"][1])
    label = (
        "return document.querySelector(\"#nodes [data-key='full']\")?.getAttribute('aria-label')"
    )
    page.wait("the node", lambda: "30 GiB of 30 GiB used" in (page.run(label) or ""))


def test_amounts_of_pods_on_several_gpus_are_of_each(page, stage):
    stage.bind_to_several("trainer", "gke-t4-06", (0, 1), 2048)
    page.wait("the share", lambda: "default/trainer" in page.shares)
    for place in ("node=gke-t4-06", "pod=default/trainer"):
        page.open(place)
        page.wait("the amount", lambda: "2 GiB on each of 2 GPUs" in page.detail)


def test_a_node_with_another_unit_has_its_amounts_and_no_free_memory(page, stage):
    stage.do(stage.cluster.node_changed, gpus("gke-gib", "l4", unit_mib=1024))
    page.open("q=gke-gib&problems=1&node=gke-gib")
    page.wait("the node", lambda: "counts in units of 1024 MiB" in page.detail)
    assert "0 GiB of 88 GiB used, 0 GiB free" in page.detail
    page.open("pod=default/notebook-ines")
    page.wait("its GPUs", lambda: "gke-gib\t\n22 GiB\n22 GiB\n22 GiB\n22 GiB" in page.detail)


def test_nodes_and_pods_can_be_sorted(page):
    page.run(CHOOSE, "sort", "free")
    page.wait("the most free first", lambda: next(iter(page.nodes)).startswith("gke-a100"))
    assert list(page.nodes)[-1].startswith("gke-t4")
    page.run(CHOOSE, "sort", "full")
    page.wait("the least free first", lambda: next(iter(page.nodes)).startswith("gke-t4"))
    page.run(CHOOSE, "order", "newest")
    page.wait("the newest first", lambda: next(iter(page.waiting)) == "embedder-5b7d")
    page.run(CHOOSE, "order", "largest")
    page.wait("the largest first", lambda: next(iter(page.waiting)) == "train-llama-0")


def test_only_nodes_with_problems_can_be_shown(page):
    click(page, "#problems")
    page.wait("nodes with problems", lambda: list(page.nodes) == ["gke-l4-02", "gke-t4-03"])
    assert page.run(PRESSED, "problems") == "true"
    assert "1 unhealthy" in text(page, "#sums")
    click(page, "#clear")
    page.wait("all nodes", lambda: len(page.nodes) == 14)


def test_each_namespace_has_its_sum_and_filters_by_it(page, stage):
    stage.bind("big", "gke-t4-06", 0, 2048, namespace="small-team")
    page.wait("its sum", lambda: "small-team\n2 GiB" in text(page, "#namespaces"))
    click(page, "#namespaces [data-name='small-team']")
    page.wait("its nodes", lambda: list(page.nodes) == ["gke-t4-06"])
    assert page.waiting == {}
    assert page.place == "ns=small-team"
    click(page, "#namespaces [data-name='small-team']")
    page.wait("all nodes", lambda: len(page.nodes) == 14)


def test_a_url_opens_filters_and_back_returns_to_the_place_before(page):
    page.open("q=l4&problems=1&node=gke-l4-02")
    page.wait("the node", lambda: "GPU 3 is unhealthy" in page.detail)
    assert list(page.nodes) == ["gke-l4-02"]
    page.press("ESCAPE")
    page.wait("no dialog", lambda: page.place == "q=l4&problems=1" and page.detail == "")
    click(page, "#problems")
    page.wait("more nodes", lambda: len(page.nodes) == 4)
    page.driver.back()
    page.wait("the filter again", lambda: list(page.nodes) == ["gke-l4-02"])
    page.driver.back()
    page.wait("the dialog again", lambda: "GPU 3 is unhealthy" in page.detail)
    page.driver.forward()
    page.wait("no dialog", lambda: page.detail == "")


@pytest.mark.parametrize("value", ["constructor", "toString", "__proto__", "%"])
def test_a_url_with_unknown_values_opens_the_live_page(page, value):
    # Each key alone is a page to load. Those of one line do not hide what another one does.
    for keys in ("sort", "order", "view", "step"), ("q", "problems"), ("ns", "node"), ("pod",):
        page.open("&".join(f"{key}={value}" for key in keys))
        assert page.complaints() == [], keys
        shown = "return ['sort', 'order'].map((id) => document.getElementById(id).value)"
        assert page.run(shown) == ["name", "queue"]
        assert page.run(PRESSED, "problems") == "false"


def test_a_url_of_an_unknown_node_or_pod_says_so(page):
    page.open("node=gone")
    page.wait("a text", lambda: "No node gone shares its GPUs" in page.detail)
    page.open("pod=default/gone")
    page.wait("a text", lambda: "No pod default/gone is shown" in page.detail)


def test_a_share_leads_to_its_pod_by_click_and_by_key(page, stage):
    stage.bind("mine", "gke-t4-04", 1, 2048)
    page.wait("the share", lambda: "default/mine" in page.shares)
    click(page, "#nodes a[data-key='default/mine']")
    page.wait("the pod", lambda: "gke-t4-04" in page.detail)
    assert "2 GiB" in page.detail
    assert page.place == "pod=default/mine"
    page.press("ESCAPE")
    page.wait("no dialog", lambda: page.place == "")
    page.filter("mine")
    page.wait("one node", lambda: list(page.nodes) == ["gke-t4-04"])
    page.press("ARROW_DOWN")
    row = page.focused
    keys = page.run(
        "return Array.from(document.querySelectorAll('#nodes a'), (a) => a.dataset.key)"
    )
    place = 1 + keys.index("default/mine")
    page.press(*["ARROW_RIGHT"] * place)
    assert page.focused.startswith("default/mine 2 GiB")
    page.press("ENTER")
    page.wait("the pod", lambda: page.place == "q=mine&pod=default/mine")
    page.press("ESCAPE")
    page.wait("no dialog", lambda: page.place == "q=mine")
    page.press(*["ARROW_LEFT"] * place)
    assert page.focused == row


def test_the_first_click_opens_the_row_below_the_pointer(driver, stage):
    stage.populate("a100", 100, 0.4)
    page = Page(driver, stage.origin).open()
    page.run("document.getElementById('nodes').scrollTop = 2_500")
    page.wait("other rows", lambda: "gke-a100-01" not in page.nodes)
    shown = list(page.nodes)
    name = shown[len(shown) // 2]
    row = driver.find_element(By.CSS_SELECTOR, f"#nodes .row[data-key='{name}'] .name")
    ActionChains(driver).move_to_element(row).click().perform()
    page.wait("the node", lambda: f"GPU-{name}-0" in page.detail)


def test_a_pending_pod_becomes_a_running_one_in_its_dialog(page, stage):
    page.open("pod=default/notebook-ines")
    page.wait("why", lambda: "Nearest nodes" in page.detail)
    stage.bind("notebook-ines", "gke-a100-01", 1, 2048)
    page.wait("where", lambda: "gke-a100-01" in page.detail and "Nearest" not in page.detail)


def test_a_closed_dialog_asks_nothing_more(page, stage):
    page.open("pod=default/notebook-ines")
    page.wait("why", lambda: "Nearest nodes" in page.detail)
    page.press("ESCAPE")
    page.wait("no dialog", lambda: page.place == "" and page.detail == "")
    page.run(COUNT_EXPLANATIONS)
    stage.add_pending("notebook-ines", 79_000, gate="example.com/later")
    page.wait("the change", lambda: "example.com/later" in page.waiting["notebook-ines"])
    assert page.run("return window.explanations") == 0


def test_the_dialog_of_a_running_pod_follows_the_pods_on_its_gpu(page, stage):
    stage.bind("mine", "gke-t4-04", 1, 1024)
    page.open("pod=default/mine")
    page.wait("the pod", lambda: "gke-t4-04" in page.detail)
    stage.bind("neighbor", "gke-t4-04", 1, 1024)
    page.wait("the other pod", lambda: "neighbor" in page.detail)


def test_a_pending_pod_shows_each_reason_once_and_who_would_have_to_end(page, stage):
    page.open("pod=default/notebook-ines")
    page.wait("why", lambda: "Nearest nodes" in page.detail)
    reasons = page.run(
        "return Array.from(document.querySelectorAll('.near'), (each) => each.innerText)"
    )
    assert len(reasons) == len(set(reasons)) == 2
    assert reasons[0].startswith("4 nodes: ")
    page.prefer(prefers_reduced_motion="reduce")
    page.picture("waiting.png")


def test_real_use_is_next_to_what_is_held(page, stage):
    page.wait(
        "measured shares",
        lambda: page.run("return document.querySelectorAll('.measured').length > 20"),
    )
    titles = page.run(TITLES, "#nodes a")
    assert any("really uses" in title and "SM 42 %" in title for title in titles)
    page.open("node=gke-l4-02")
    page.wait("its columns", lambda: "Really uses" in page.detail and "42 %" in page.detail)
    shown = page.run("return document.querySelector('#nodes .measured').dataset.key")
    page.open(f"pod={shown}")
    page.wait("its utilization", lambda: "SM utilization\n42 %" in page.detail)


def test_real_use_of_all_visible_nodes_is_asked_at_once(page):
    page.wait("measured shares", lambda: page.run("return document.querySelector('.measured')"))
    page.wait("the browser's record of the request", lambda: page.run(ASKED_FIRST))
    assert page.run(ASKED_FIRST) == len(page.nodes) == 14


def test_real_use_includes_other_processes_and_says_what_is_not_known(driver, stage):
    stage.populate("t4", 2, 0.5)
    stage.bind("mine", "gke-t4-01", 0, 1000)
    stage.do(stage.cluster.node_changed, gpus("idle", "t4"))
    stage.plugins.host_mib |= {"GPU-gke-t4-01-0": 1024, "GPU-gke-t4-02-1": 512}
    stage.plugins.hidden.add("GPU-gke-t4-01-0")
    page = Page(driver, stage.origin)
    for node, expected in (
        ("idle", ["0 GiB", "0 GiB"]),
        ("gke-t4-01", ["at least 3 GiB, 3 GiB of it outside of pods"]),
    ):
        page.open(f"node={node}")
        page.wait("its use", lambda expected=expected: page.run(USED)[: len(expected)] == expected)
    page.open("node=gke-t4-02")
    page.wait("its use", lambda: "512 MiB of it outside of pods" in page.detail)
    page.open("pod=default/mine")
    page.wait("that it is not known", lambda: "Really uses\nnot known" in page.detail)
    assert "SM utilization\nnot known" in page.detail


def test_only_visible_nodes_are_measured(driver, stage):
    stage.populate("a100", 300, 0.4)
    page = Page(driver, stage.origin).open()
    page.wait("measured shares", lambda: page.run("return document.querySelector('.measured')"))
    assert len(set(stage.plugins.asked)) < 40


def test_after_a_failed_request_for_real_use_the_page_waits(page):
    assert page.driver.execute_async_script(REFUSED_USE) == 1


def test_where_real_use_is_not_measured_one_line_says_how_to_enable_it(page, stage):
    stage.plugins.measures = False
    page.open("node=gke-t4-05")
    page.wait("how", lambda: "add the component process-memory" in page.detail)
    assert page.detail.count("process-memory") == 1


def test_the_last_hour_is_a_picture_with_the_same_as_text(page):
    page.wait("the chart", lambda: page.run("return document.querySelector('#history svg')"))
    assert text(page, "#history-text").startswith("Last hour: ")
    assert ("image", text(page, "#history-text")) in page.accessible()


def test_the_picture_of_the_last_hour_stays_when_something_else_changes(page, stage):
    page.wait("the chart", lambda: page.run("return document.querySelector('#history svg')"))
    page.run("document.querySelector('#history svg').id = 'drawn-first'")
    stage.bind("mine", "gke-t4-04", 1, 1500)
    page.wait("the share", lambda: "default/mine" in page.shares)
    assert page.run("return document.getElementById('drawn-first')")


def test_every_node_is_a_cell_that_opens_it(page):
    cells = "return document.querySelectorAll('#heat a').length"
    page.wait("the cells", lambda: page.run(cells) == 14)
    page.run("document.querySelector('#heat a').focus()")
    page.press("ARROW_RIGHT", "ENTER")
    page.wait("the second node", lambda: page.place == "node=gke-a100-02")


def test_an_empty_cluster_shows_the_next_step(driver, stage):
    page = Page(driver, stage.origin).open()
    page.wait("the step", lambda: "kubectl label node NODE gpushare=true" in text(page, "main"))


def test_the_page_of_one_namespace_has_its_pods_and_amounts_of_others(page, stage):
    stage.do(stage.cluster.state.namespaces.put, Namespace("research", quota=parse("204800")))
    page.wait("the quota", lambda: "of 200 GiB" in text(page, "#namespaces"))

    def pods():
        return {key for key in page.shares if "/" in key and not key.startswith("?")}

    ours = {key for key in pods() if key.startswith("research/")}
    assert ours < pods()
    page.open("only=research")
    page.wait("its own pods", lambda: pods() == ours)
    assert text(page, "#only") == "namespace research"
    assert page.waiting == {}
    assert "of 200 GiB" in text(page, "#namespaces")
    labels = {card["label"] for cards in page.nodes.values() for card in cards}
    assert any("other pods" in label for label in labels)
    everything = page.run("return document.body.innerText")
    assert "serving" not in everything
    page.wait("real use", lambda: page.run("return document.querySelector('.measured')"))
    assert page.run(
        "return performance.getEntriesByType('resource').map((each) => each.name)"
        ".filter((name) => /usage/.test(name) && !/page/.test(name))"
        ".every((name) => name.includes('/usage/research?'))"
    )
    click(page, "#nodes a.segment.pod")
    page.wait("the pod", lambda: "Really uses" in page.detail)


def test_who_may_list_one_namespace_only_names_it_beside_the_token(driver, stage):
    stage.dress()
    stage.close()
    stage.reviews = Reviews()
    stage.reviews.may = {("alice", "list", "research")}
    stage.open()
    page = Page(driver, stage.origin).open(live=False)
    page.wait("the question", lambda: "send a token" in text(page, "#sign-in"))
    page.press("good", "ENTER")
    refused = "alice may not list pods in all namespaces"
    page.wait("why not", lambda: refused in text(page, "#sign-in"))
    assert page.nodes == {}
    page.press("good", "TAB", "research", "ENTER")
    page.wait("the namespace", lambda: page.state == "live")
    assert text(page, "#only") == "namespace research"
    assert page.place == "only=research"
    named = {key.partition("/")[0] for key in page.shares if "/" in key}
    assert named == {"research"}
