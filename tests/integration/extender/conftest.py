"""The live page of simulated nodes in a real browser."""

import pytest

from extender.page import usage
from tests.browser import Page, chromium
from tests.integration.extender.fleet import fleet


@pytest.fixture(scope="module")
def driver(browser):
    with chromium(browser) as made:
        yield made


@pytest.fixture
def stage(ports, monkeypatch):
    # A loaded machine runs all plugins too; the page asks for a silent one's amounts much later.
    monkeypatch.setattr(usage, "READ_SECONDS", 60)
    with fleet(next(ports)) as made:
        yield made


@pytest.fixture
def page(driver, stage):
    """The page with an example of everything; the browser's console must stay empty."""
    stage.dress()
    made = Page(driver, stage.origin)
    made.prefer(prefers_color_scheme="light")
    yield made.open()
    assert made.complaints() == []
