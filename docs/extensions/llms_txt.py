"""Pages for language models: each page as Markdown beside its HTML, and an index of all of them.

The index is `llms.txt`, see https://llmstxt.org. `llms-full.txt` has the text of all pages.
`schemas/` has the JSON Schemas of files and of the output of commands.
"""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from docs.extensions.plain_markdown import Entry, plain_markdown, summary

SCHEMAS = "schemas"


def setup(app: Any) -> dict[str, Any]:
    """Registers the extension with Sphinx."""
    app.connect("html-page-context", _link_to_markdown)
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True}


def _link_to_markdown(app: Any, page: str, template: str, context: Any, doctree: Any) -> None:
    """Names the Markdown of a page in the head of its HTML."""
    if doctree is not None:
        name = f"{page.rpartition('/')[2]}.md"
        link = f'<link rel="alternate" type="text/markdown" href="{name}">'
        context["metatags"] = context.get("metatags", "") + link


def _write(app: Any, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    out, env = Path(app.outdir), app.env
    pages = {name: _plain(name, env) for name in _in_order(env, env.config.root_doc)}
    for name, text in pages.items():
        (out / f"{name}.md").write_text(text, encoding="utf-8")
    (out / "llms.txt").write_text(_index(pages, env, Path(app.srcdir)), encoding="utf-8")
    (out / "llms-full.txt").write_text("\n".join(pages.values()), encoding="utf-8")
    shutil.copytree(Path(app.srcdir) / SCHEMAS, out / SCHEMAS, dirs_exist_ok=True)


def _in_order(env: Any, page: str) -> Iterator[str]:
    """Yields a page and all below it, in the order of the tables of contents."""
    yield page
    for child in env.toctree_includes.get(page, ()):
        yield from _in_order(env, child)


def _plain(page: str, env: Any) -> str:
    folder = page.rpartition("/")[0]

    def entries(names: Sequence[str]) -> Iterator[Entry]:
        for name in names:
            yield name, _title(f"{folder}/{name}".removeprefix("/"), env)

    return plain_markdown(Path(env.doc2path(page)).read_text(encoding="utf-8"), entries)


def _title(page: str, env: Any) -> str:
    return env.titles[page].astext()


def _index(pages: dict[str, str], env: Any, source: Path) -> str:
    """Returns the index: the summary, a section per folder, and the schemas."""
    root = env.config.root_doc
    parts = [f"# {_title(root, env)}\n\n> {summary(pages[root])}\n"]
    for section in env.toctree_includes[root]:
        lines = [
            f"- [{_title(page, env)}]({page}.md): {summary(pages[page])}\n"
            for page in env.toctree_includes[section]
        ]
        parts.append(f"## {_title(section, env)}\n\n{''.join(lines)}")
    schemas = sorted((source / SCHEMAS).glob("*.json"))
    lines = [f"- [{path.name.partition('.')[0]}]({SCHEMAS}/{path.name})\n" for path in schemas]
    parts.append(f"## JSON Schemas\n\n{''.join(lines)}")
    return "\n".join(parts)
