"""The site in headless Chromium: widths, light and dark, and the search."""

import functools
import http.server
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.docs
webdriver = pytest.importorskip("selenium.webdriver")
wait = pytest.importorskip("selenium.webdriver.support.wait")

WIDTHS = {"desktop": 1280, "phone": 390}
SHOTS = ("index", "reference/job-file", "tutorials/first-run")
"""Pages of which SLIPWAY_SHOTS, a folder, gets pictures."""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def url(site: Path) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("needs chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    service = webdriver.ChromeService(executable_path=str(shutil.which("chromedriver")))
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


def resize(browser: Any, width: int) -> None:
    """Sets the width of the page in CSS pixels: windows have a minimum width."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def use_scheme(browser: Any, scheme: str) -> None:
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_no_page_scrolls_sideways(browser: Any, url: str, site: Path, width: int) -> None:
    resize(browser, width)
    too_wide = []
    for path in sorted(site.rglob("*.html")):
        browser.get(f"{url}/{path.relative_to(site)}")
        root = "document.documentElement"
        found = browser.execute_script(f"return [{root}.scrollWidth, {root}.clientWidth]")
        too_wide += [f"{path.relative_to(site)}: {found}"] if found[0] > found[1] else []
    assert too_wide == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_scheme(browser: Any, url: str, scheme: str) -> None:
    resize(browser, WIDTHS["desktop"])
    use_scheme(browser, scheme)
    for page in SHOTS:
        browser.get(f"{url}/{page}.html")
        style = "return getComputedStyle(document.body)"
        ground, text = (
            browser.execute_script(f"{style}.{name}") for name in ("backgroundColor", "color")
        )
        assert (brightness(ground) > brightness(text)) == (scheme == "light")
        if folder := os.environ.get("SLIPWAY_SHOTS"):
            browser.save_screenshot(f"{folder}/{page.replace('/', '-')}-{scheme}.png")


def brightness(colour: str) -> float:
    """Returns the mean of the channels of "rgb(1, 2, 3)"."""
    channels = colour.partition("(")[2].rstrip(")").split(",")[:3]
    return sum(map(float, channels)) / 3


def test_search_finds_resume(browser: Any, url: str) -> None:
    browser.get(f"{url}/search.html?q=resume")
    links = "return [...document.querySelectorAll('.search li a')].map(link => link.href)"
    wait.WebDriverWait(browser, 30).until(
        lambda driver: any("checkpoints" in link for link in driver.execute_script(links))
    )
