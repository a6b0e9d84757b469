"""Writes the generated reference pages into docs/reference/, and the schemas into docs/schemas/."""

from docs.generate.pages import PAGES, REFERENCE
from docs.generate.schemas import file_of, text_of
from launcher.commands.schema import NAMES

for name, page in PAGES.items():
    (REFERENCE / name).write_text(page(), encoding="utf-8")
for name in NAMES:
    file_of(name).write_text(text_of(name), encoding="utf-8")
