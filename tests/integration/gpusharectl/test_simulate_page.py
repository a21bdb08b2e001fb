"""The simulator's page in a real browser: one step at a time, by keys and by slider."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from gpusharectl.app import cli
from tests.browser import chromium

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def driver(browser: Path) -> Iterator[webdriver.Chrome]:
    with chromium(browser) as opened:
        yield opened


@pytest.fixture
def page(tmp_path: Path) -> str:
    path = tmp_path / "page.html"
    found = CliRunner().invoke(cli, ["simulate", "--example", "fragmentation", "--html", str(path)])
    assert found.exit_code == 0, found.output
    return path.as_uri()


def shown(driver: webdriver.Chrome) -> list[str]:
    sections = driver.find_elements(By.CSS_SELECTOR, "main section")
    return [str(each.get_attribute("id")) for each in sections if each.is_displayed()]


def press(driver: webdriver.Chrome, key: str) -> None:
    driver.switch_to.active_element.send_keys(key)


def test_keys_and_slider_go_from_step_to_step(driver: webdriver.Chrome, page: str):
    driver.get(page)
    assert shown(driver) == ["step-1"]
    press(driver, Keys.ARROW_RIGHT)
    press(driver, Keys.ARROW_RIGHT)
    assert shown(driver) == ["step-3"]
    assert driver.current_url.endswith("#step-3")
    assert "large waits for 16 on one card" in driver.find_element(By.TAG_NAME, "main").text
    press(driver, Keys.ARROW_LEFT)
    assert shown(driver) == ["step-2"]
    press(driver, Keys.END)
    assert shown(driver) == ["step-4"]
    slider = driver.find_element(By.ID, "which")
    slider.send_keys(Keys.ARROW_LEFT)
    assert shown(driver) == ["step-3"]
    assert slider.get_attribute("aria-valuetext") == "2m step 3 of 4"
    driver.find_element(By.ID, "on").click()
    assert shown(driver) == ["step-4"]
    driver.get(f"{page}#step-2")
    assert shown(driver) == ["step-2"]
    assert not [each for each in driver.get_log("browser") if each["level"] == "SEVERE"]


def test_without_scripts_all_steps_are_there(driver: webdriver.Chrome, page: str):
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        driver.get(page)
        steps = [f"step-{number}" for number in range(1, 5)]
        # No script may run, so what is shown is asked of the browser itself.
        root = driver.execute_cdp_cmd("DOM.getDocument", {"depth": 1})["root"]["nodeId"]
        for step in steps:
            found = driver.execute_cdp_cmd(
                "DOM.querySelector", {"nodeId": root, "selector": f"#{step}"}
            )
            driver.execute_cdp_cmd("DOM.getBoxModel", {"nodeId": found["nodeId"]})
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_dark_and_light_are_as_the_system_wants_them(driver: webdriver.Chrome, page: str):
    def background(scheme: str) -> str:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        driver.get(page)
        return driver.find_element(By.TAG_NAME, "body").value_of_css_property("background-color")

    assert background("dark") == "rgba(13, 17, 23, 1)"
    assert background("light") == "rgba(255, 255, 255, 1)"
