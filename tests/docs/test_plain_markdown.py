"""Pages as plain Markdown: directives are replaced, and everything else is kept."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.extensions.plain_markdown import plain_markdown, summary
from tests.docs.pages import PAGES, page_id

LINES = st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S", "Zs"]))
PARAGRAPHS = st.lists(LINES.map(str.strip).filter(lambda line: line[:1].isalnum()), min_size=1)


def entries(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    return ((name, name.upper()) for name in names)


def plain(source: str) -> str:
    return plain_markdown(source, entries)


@given(PARAGRAPHS)
def test_text_without_directives_is_kept(paragraphs: list[str]) -> None:
    text = "\n\n".join(paragraphs)
    assert plain(text) == text + "\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("<!-- Generated. -->\n\n# Title\n", "# Title\n"),
        ("(label)=\n## Section\n", "## Section\n"),
        ("```{toctree}\n:maxdepth: 1\n\na\nb\n```\n", "- [A](a.md)\n- [B](b.md)\n"),
        ("# T\n\n```{toctree}\n:hidden:\n\na/index\n```\n", "# T\n"),
        (":::{warning}\nIt ends.\n:::\n", "**Warning:** It ends.\n"),
        (
            "::::{grid} 1 2\n:gutter: 3\n\n:::{grid-item-card} Guides\n:link: how/index\n"
            ":link-type: doc\n\nRun it.\n:::\n::::\n",
            "- [Guides](how/index.md): Run it.\n",
        ),
        ("```sh\nuv run launch list\n```\n", "```sh\nuv run launch list\n```\n"),
    ],
)
def test_a_directive_becomes_markdown(source: str, expected: str) -> None:
    assert plain(source) == expected


def test_autodoc_becomes_signature_and_docstring() -> None:
    text = plain("```{eval-rst}\n.. autofunction:: launcher.find_run\n```\n")
    assert text.startswith("### `launcher.find_run(name_or_path:")
    assert "Returns the handle of a run" in text


def test_autodoc_of_members_has_each_of_them() -> None:
    text = plain("```{eval-rst}\n.. autoclass:: launcher.RunHandle\n   :members:\n```\n")
    assert "#### `launcher.RunHandle.stop(" in text


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_no_page_keeps_a_directive(path) -> None:
    text = plain(path.read_text(encoding="utf-8"))
    assert ":::" not in text and "```{" not in text and "<!--" not in text


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("# T\n\nIt runs. It ends.\n\nMore.\n", "It runs. It ends."),
        ("# T\n\n```sh\nlaunch\n```\n\n`launch` [runs](a.md) it:\n", "`launch` runs it."),
        (f"# T\n\nShort. {'Long ' * 40}text.\n", "Short."),
        ("# T\n\n- a list\n", ""),
    ],
)
def test_summary_is_the_beginning_of_the_first_paragraph(page: str, expected: str) -> None:
    assert summary(page) == expected
