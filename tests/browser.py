"""Drive the live page in Debian's Chromium without a screen, and read what it shows."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.keys import Keys

from localcluster.wait import wait_until
from tests.needs import IS_PAINTING

PICTURES: Final = Path(__file__).parents[1] / "docs" / "pictures"
PAGE: Final = "/gpushare-scheduler/page"
SIZE: Final = (1440, 1400)  # so that every row of an example is in the document

# What the page shows, as its DOM has it: each row's name and its cards with their segments.
_NODES: Final = """
return Array.from(document.querySelectorAll("#nodes .row"), (row) => [
  row.querySelector("strong").textContent,
  Array.from(row.querySelectorAll(".card"), (card) => ({
    label: [card.querySelector(".head"), ...card.querySelectorAll(".segment")].map(
      (part) => part.getAttribute("aria-label") ?? part.innerText).join(", "),
    segments: Array.from(card.querySelectorAll(".segment"), (part) => [
      part.dataset.key, part.querySelector("small").textContent]),
  })),
]);
"""
_WAITING: Final = """
return Array.from(document.querySelectorAll("#waiting .row"), (row) => [
  row.querySelector("strong").textContent, row.querySelector(".why").textContent]);
"""
_AXE: Final = """
const done = arguments[arguments.length - 1];
axe.run().then(({ violations }) => done(violations.map((each) => [
  each.id, each.help, each.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | ")])));
"""


@contextmanager
def chromium(program: Path) -> Iterator[webdriver.Chrome]:
    """Start the browser of the fixture ``browser``; it fetches nothing by itself."""
    options = webdriver.ChromeOptions()
    # Chromium's sandbox takes no root, and a container's /dev/shm is small.
    words = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
    for word in (*words, "--no-first-run", "--disable-background-networking"):
        options.add_argument(word)
    options.binary_location = str(program)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(str(shutil.which("chromedriver"))))
    try:
        resize(driver, *SIZE)
        yield driver
    finally:
        driver.quit()


def resize(driver: webdriver.Chrome, width: int, height: int) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


_TRIES = 5
# Chromium drops what it loads when a cluster of other tests changes the network.
_OF_OTHERS = "ERR_NETWORK_CHANGED"


class Page:
    """The live page of an extender as a user sees it."""

    def __init__(self, driver: webdriver.Chrome, origin: str) -> None:
        self.driver, self.url = driver, origin + PAGE
        self._told: list[str] = []  # by the console while the page was loaded

    def open(self, place: str = "", *, live: bool = True) -> "Page":
        """Load the page again; return once it is loaded, or live unless ``live`` is false.

        ``place`` is the part of the URL after #.
        """
        for _ in range(_TRIES):
            self.driver.get("about:blank")  # a page whose server has ended keeps asking
            self.driver.get_log("browser")
            self.driver.get(f"{self.url}#{place}" if place else self.url)
            self._told = self._new_messages()
            if not any(_OF_OTHERS in each for each in self._told):
                break
        self.run("window.loadedOnce = true")
        if live:
            self.wait("the page to be live", lambda: self.state == "live")
        return self

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def prefer(self, **features: str) -> None:
        """Set what the system prefers, as ``prefers_color_scheme="dark"``."""
        listed = [{"name": k.replace("_", "-"), "value": v} for k, v in features.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": listed})

    def wait(self, what: str, is_so: Callable[[], object], seconds: float = 60) -> None:
        """Return once ``is_so`` holds; fail with what the page shows."""

        def not_yet() -> str | None:
            return None if is_so() else f"{self.nodes} {self.waiting} {self.state}"[-3000:]

        wait_until(what, not_yet, seconds=seconds, interval=0.02)

    def press(self, *keys: str) -> None:
        """Press keys wherever the focus is; names are selenium's, as ``ENTER``."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(getattr(Keys, key, key))

    def filter(self, text: str) -> None:
        """Replace the text of the filter."""
        self.press("/")
        self.press("DELETE", text)

    @property
    def state(self) -> str:
        return str(self.run("return document.getElementById('state').textContent"))

    @property
    def nodes(self) -> dict[str, list[dict[str, Any]]]:
        """Return the cards of each node, by the rows of the document."""
        return dict(self.run(_NODES))

    @property
    def shares(self) -> dict[str, tuple[str, int]]:
        """Return node and card of each pod's share; of several cards the last one."""
        return {
            key: (node, index)
            for node, cards in self.nodes.items()
            for index, card in enumerate(cards)
            for key, _ in card["segments"]
        }

    @property
    def waiting(self) -> dict[str, str]:
        """Return the pods of the second list, each with its reason."""
        return dict(self.run(_WAITING))

    @property
    def is_the_first(self) -> bool:
        """Return whether the page was not reloaded since ``open``."""
        return bool(self.run("return window.loadedOnce === true"))

    @property
    def focused(self) -> str:
        """Return the label of the row that keys act on, or the id of another focused element."""
        return str(
            self.run(
                "const on = document.activeElement;"
                "const row = document.getElementById(on.getAttribute('aria-activedescendant'));"
                "return row ? row.getAttribute('aria-label') : on.id"
            )
        )

    @property
    def place(self) -> str:
        """Return the part of the page's URL after #."""
        return str(self.run("return decodeURIComponent(location.hash.slice(1))"))

    @property
    def detail(self) -> str:
        """Return the text of the open dialog; empty without one."""
        script = "const d = document.getElementById('detail'); return d.open ? d.innerText : ''"
        return str(self.run(script))

    def accessible(self, inside: str = "") -> list[tuple[str, str]]:
        """Return role and name of everything that a screen reader announces.

        With ``inside``, only of the elements of this role and what they contain.
        """
        tree = self.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
        wanted = set() if inside else {each["nodeId"] for each in tree}
        found = []
        for each in tree:  # parents come before their children
            role, name = (each.get(key, {}).get("value", "") for key in ("role", "name"))
            if role == inside or each.get("parentId") in wanted:
                wanted.add(each["nodeId"])
            if each["nodeId"] in wanted and not each.get("ignored"):
                found.append((role, name))
        return found

    def violations(self, axe: Path) -> list[str]:
        """Return what axe-core finds wrong for people with disabilities."""
        self.run(axe.read_text(encoding="utf-8"))
        found = self.driver.execute_async_script(_AXE)
        return [f"{rule}: {help_} {where}" for rule, help_, where in found]

    def complaints(self) -> list[str]:
        """Return the console's messages since ``open``: broken scripts, blocked content."""
        told = [*self._told, *self._new_messages()]
        return [each for each in told if _OF_OTHERS not in each]

    def _new_messages(self) -> list[str]:
        return [json.dumps(each["message"]) for each in self.driver.get_log("browser")]

    def picture(self, name: str, height: int = 900) -> None:
        """Save a screenshot for the docs, if GPUSHARE_SCREENSHOTS asks for it."""
        if IS_PAINTING:
            PICTURES.mkdir(exist_ok=True)
            resize(self.driver, SIZE[0], height)
            self.driver.save_screenshot(str(PICTURES / name))
            resize(self.driver, *SIZE)
