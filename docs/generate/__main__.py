"""Writes the generated reference pages into docs/reference/."""

from docs.generate.pages import PAGES, REFERENCE

for name, page in PAGES.items():
    (REFERENCE / name).write_text(page(), encoding="utf-8")
