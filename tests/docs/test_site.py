"""The site builds without warnings, and every link in it has a target."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT

pytestmark = pytest.mark.docs


class Page(HTMLParser):
    """The links and the anchors of one page."""

    def __init__(self, path: Path):
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.links.append(value)
            elif value and name == "id":
                self.anchors.add(value)


def test_every_page_is_built(site: Path) -> None:
    built = {str(path.relative_to(site).with_suffix("")) for path in site.rglob("*.html")}
    assert {str(path.relative_to(DOCS).with_suffix("")) for path in PAGES} <= built


def test_every_internal_link_has_a_target(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html")}
    dead = []
    for path, page in pages.items():
        for link in page.links:
            target, anchor = urldefrag(link)
            if re.match(r"(https?|mailto|data):", link):
                continue
            found = (path.parent / unquote(target).partition("?")[0]).resolve() if target else path
            is_dead = not found.exists() or (found in pages and anchor not in pages[found].anchors)
            dead += [f"{path.name}: {link}"] if is_dead else []
    assert dead == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_of_root_files_have_targets(name: str, site: Path) -> None:
    """They link to Markdown files, whose anchors are those of the built pages."""
    links = re.findall(r"\]\(([^)\s]+)\)", (ROOT / name).read_text(encoding="utf-8"))
    for link in links:
        target, anchor = urldefrag(link)
        if link.startswith("http"):
            continue
        assert (ROOT / target).exists(), link
        if anchor and target.startswith("docs/"):
            built = site / Path(target).relative_to("docs").with_suffix(".html")
            assert anchor in Page(built).anchors, link
