"""Pages as plain Markdown: without the directives of MyST, which only Sphinx understands."""

import inspect
import pydoc
import re
from collections.abc import Callable, Iterator, Sequence

_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)
_LABEL = re.compile(r"^\([\w-]+\)=\n", re.MULTILINE)
_BLOCK = re.compile(r"^```\{([\w-]+)\}[^\n]*\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
_CARD = re.compile(
    r"^:::\{grid-item-card\} ([^\n]+)\n:link: (\S+)\n:link-type: doc\n(.*?)^:::\n",
    re.DOTALL | re.MULTILINE,
)
_GRID = re.compile(r"^::::(\{grid\}[^\n]*\n(:[^\n]+\n)*|\n?)", re.MULTILINE)
_NOTE = re.compile(r"^:::\{(note|tip|warning)\}\n(.*?)^:::\n", re.DOTALL | re.MULTILINE)
_AUTODOC = re.compile(r"^\.\. auto\w+:: ([\w.]+)(.*(?:\n   .+)*)", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```\n", re.DOTALL | re.MULTILINE)
_BLANK = re.compile(r"\n{3,}")
_SUMMARY_CHARACTERS = 160

Entry = tuple[str, str]
"""The name of a page, relative to the page that lists it, and its title."""


def plain_markdown(source: str, entries: Callable[[Sequence[str]], Iterator[Entry]]) -> str:
    """Returns the source of a page without comments, labels and directives.

    `entries` looks up the pages that a table of contents lists.
    """

    def replace_block(found: re.Match[str]) -> str:
        kind, content = found[1], found[2]
        if kind == "eval-rst":
            return "".join(map(_documentation, _AUTODOC.finditer(content)))
        names = [line for line in content.splitlines() if line and not line.startswith(":")]
        if kind != "toctree" or ":hidden:" in content:
            return ""
        return "".join(f"- [{title}]({name}.md)\n" for name, title in entries(names))

    text = _LABEL.sub("", _COMMENT.sub("", source))
    text = _BLOCK.sub(replace_block, text)
    text = _CARD.sub(lambda card: f"- [{card[1]}]({card[2]}.md): {card[3].strip()}\n", text)
    text = _NOTE.sub(lambda note: f"**{note[1].title()}:** {note[2].strip()}\n", text)
    return _BLANK.sub("\n\n", _GRID.sub("", text)).strip() + "\n"


def summary(page: str) -> str:
    """Returns the beginning of the first paragraph of a plain page: sentences that fit a line."""
    paragraphs = _FENCE.sub("", page.partition("\n")[2]).split("\n\n")
    found = (part for part in map(str.strip, paragraphs) if re.match(r"[A-Z`\[]", part))
    prose = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", " ".join(next(found, "").split()))
    first, *rest = re.split(r"(?<=[.!?:]) (?=[A-Z`])", prose)
    for sentence in rest:
        if len(first) + len(sentence) > _SUMMARY_CHARACTERS:
            break
        first += f" {sentence}"
    return f"{first[:-1]}." if first.endswith(":") else first


def _documentation(found: re.Match[str]) -> str:
    """Returns the documentation of an object that autodoc documents, and of its members."""
    name, options = found[1], found[2]
    owner = pydoc.locate(name)
    text = _object(name, owner, "###")
    if ":members:" in options:
        for member, value in vars(owner).items():
            if not member.startswith("_") and inspect.getdoc(value):
                text += _object(f"{name}.{member}", value, "####")
    return text


def _object(name: str, value: object, heading: str) -> str:
    call = name
    if inspect.isfunction(value):
        call += str(inspect.signature(value))
    return f"{heading} `{call}`\n\n{inspect.getdoc(value) or ''}\n\n"
