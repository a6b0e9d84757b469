"""The site for language models: Markdown beside each page, and an index of all pages."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, PAGES

pytestmark = pytest.mark.docs
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)]*)?\)")


def test_every_page_has_its_markdown_beside_it(site: Path) -> None:
    missing = [path for path in PAGES if not (site / path.relative_to(DOCS)).exists()]
    assert missing == []


def test_links_between_markdown_pages_have_targets(site: Path) -> None:
    fence = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
    dead = [
        f"{path.name}: {link}"
        for path in site.rglob("*.md")
        for link in LINK.findall(fence.sub("", path.read_text(encoding="utf-8")))
        if link.endswith((".md", ".json")) and not link.startswith("http")
        if not (path.parent / link).exists()
    ]
    assert dead == []


def test_html_names_its_markdown(site: Path) -> None:
    html = (site / "how-to" / "sweeps.html").read_text(encoding="utf-8")
    assert '<link rel="alternate" type="text/markdown" href="sweeps.md">' in html


def test_index_lists_every_page_once_with_a_description(site: Path) -> None:
    lines = (site / "llms.txt").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# Slipway"
    assert lines[2].startswith("> Slipway runs JAX training")
    listed = [m for line in lines if (m := re.fullmatch(r"- \[(.+)\]\((.+\.md)\): (.+)", line))]
    pages = {str(path.relative_to(DOCS)) for path in PAGES if path.name != "index.md"}
    assert sorted(one[2] for one in listed) == sorted(pages)
    sections = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
    assert sections == ["Tutorials", "How-to guides", "Reference", "Explanation", "JSON Schemas"]


def test_index_links_to_every_schema(site: Path) -> None:
    links = LINK.findall((site / "llms.txt").read_text(encoding="utf-8"))
    schemas = {path.name for path in (DOCS / "schemas").iterdir()}
    assert {Path(link).name for link in links if link.endswith(".json")} == schemas
    assert all((site / link).exists() for link in links)


def test_the_whole_text_has_every_page(site: Path) -> None:
    whole = (site / "llms-full.txt").read_text(encoding="utf-8")
    titles = {path.read_text("utf-8").partition("# ")[2].partition("\n")[0] for path in PAGES}
    assert [title for title in titles if f"# {title}\n" not in whole] == []
