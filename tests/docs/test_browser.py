"""The site in headless Chromium: widths, light and dark, and the search."""

import functools
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import SCHEMES, WIDTHS, has_scheme, is_too_wide, resize, use_scheme

pytestmark = pytest.mark.docs
wait = pytest.importorskip("selenium.webdriver.support.wait")

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


def test_no_page_scrolls_sideways(browser: Any, url: str, site: Path) -> None:
    too_wide = []
    for path in sorted(site.rglob("*.html")):
        browser.get(f"{url}/{path.relative_to(site)}")
        for screen, width in WIDTHS.items():
            resize(browser, width)
            too_wide += [f"{path.relative_to(site)}: {screen}"] if is_too_wide(browser) else []
    assert too_wide == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_colours_follow_the_scheme(browser: Any, url: str, scheme: str) -> None:
    resize(browser, WIDTHS["desktop"])
    use_scheme(browser, scheme)
    for page in SHOTS:
        browser.get(f"{url}/{page}.html")
        assert has_scheme(browser, scheme)
        if folder := os.environ.get("SLIPWAY_SHOTS"):
            browser.save_screenshot(f"{folder}/{page.replace('/', '-')}-{scheme}.png")


def test_search_finds_resume(browser: Any, url: str) -> None:
    browser.get(f"{url}/search.html?q=resume")
    links = "return [...document.querySelectorAll('.search li a')].map(link => link.href)"
    wait.WebDriverWait(browser, 30).until(
        lambda driver: any("checkpoints" in link for link in driver.execute_script(links))
    )
