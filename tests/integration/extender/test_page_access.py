"""axe-core finds no violation on the live page, in any state, theme and width."""

import pytest

from tests.browser import Page, resize

pytestmark = pytest.mark.integration

WIDTHS = {"desktop": (1440, 900), "phone": (390, 844)}


@pytest.fixture(params=["light", "dark"])
def theme(request):
    return {"prefers_color_scheme": request.param, "prefers_reduced_motion": "reduce"}


@pytest.fixture(params=WIDTHS)
def shown(request, driver, stage, theme):
    page = Page(driver, stage.origin)
    page.prefer(**theme)
    resize(driver, *WIDTHS[request.param])
    yield page
    resize(driver, 1440, 1400)


def test_lists_and_dialogs(shown, stage, axe):
    stage.dress()
    shown.open()
    shown.wait("measured shares", lambda: shown.run("return document.querySelector('.measured')"))
    assert shown.violations(axe) == []
    for view in ("overview", "pending"):
        shown.open(f"view={view}&q=gke&problems=1&ns=default")
        assert shown.violations(axe) == []
    share = shown.run("return document.querySelector('#nodes a').dataset.key")
    for place, wanted in (
        ("node=gke-l4-02", "Really used"),
        ("pod=default/notebook-ines", "Nearest nodes"),
        (f"pod={share}", "Uses"),
        ("node=unknown", "No node unknown"),
    ):
        shown.open(place)
        shown.wait(wanted, lambda wanted=wanted: wanted in shown.detail)
        assert shown.violations(axe) == []


def test_an_empty_cluster(shown, axe):
    shown.open()
    assert shown.violations(axe) == []


def test_a_thousand_nodes(shown, stage, axe):
    stage.populate("t4", 1000, 0.4)
    shown.open()
    assert shown.violations(axe) == []


def test_the_page_of_one_namespace(shown, stage, axe):
    stage.dress()
    shown.open("only=research")
    shown.wait("measured shares", lambda: shown.run("return document.querySelector('.measured')"))
    assert shown.violations(axe) == []
    shown.open("only=research&node=gke-l4-02")
    shown.wait("the node", lambda: "GPU-gke-l4-02-0" in shown.detail)
    assert shown.violations(axe) == []
