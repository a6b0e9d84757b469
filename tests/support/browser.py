"""Headless Chromium: its width, its colours, and what a page has loaded."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

WIDTHS = {"desktop": 1280, "phone": 390}
SCHEMES = ("light", "dark")
LOGS = "goog:loggingPrefs"


@contextmanager
def chromium() -> Iterator[Any]:
    """Yields a driver, or skips the test where the browser or its driver is missing."""
    webdriver = pytest.importorskip("selenium.webdriver")
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("needs chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability(LOGS, {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=str(shutil.which("chromedriver")))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()


def resize(browser: Any, width: int) -> None:
    """Sets the width of the page in CSS pixels: windows have a minimum width."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def use_scheme(browser: Any, scheme: str) -> None:
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def is_too_wide(browser: Any) -> bool:
    """Returns whether the page scrolls sideways."""
    root = "document.documentElement"
    return browser.execute_script(f"return {root}.scrollWidth > {root}.clientWidth")


def has_scheme(browser: Any, scheme: str) -> bool:
    """Returns whether the page's text and background are those of a light or dark scheme."""
    style = "return getComputedStyle(document.body)"
    ground, text = (
        browser.execute_script(f"{style}.{name}") for name in ("backgroundColor", "color")
    )
    return (_brightness(ground) > _brightness(text)) == (scheme == "light")


def requests(browser: Any) -> list[str]:
    """Returns the addresses that were requested since the last call, without data URLs."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    urls = [params["request"]["url"] for params in sent]
    return [url for url in urls if not url.startswith("data:")]


def console(browser: Any) -> list[str]:
    """Returns the messages and errors in the console since the last call."""
    return [entry["message"] for entry in browser.get_log("browser")]


def _brightness(colour: str) -> float:
    """Returns the mean of the channels of "rgb(1, 2, 3)"."""
    channels = colour.partition("(")[2].rstrip(")").split(",")[:3]
    return sum(map(float, channels)) / 3
