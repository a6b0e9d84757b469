"""Text of programs and other machines, made safe for a terminal.

A terminal obeys control characters: they move the cursor, set the title, write the clipboard. Of
those that a run's files hold, only colours are shown.
"""

import re

_COLOUR = re.compile(r"(\x1b\[[0-9;:]*m)")
_CONTROL: dict[int, str | None] = {
    code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"
}
_CONTROL[ord("\r")] = " "


def plain(text: str) -> str:
    """Without control characters, but for tabs and newlines."""
    return text.translate(_CONTROL)


def coloured(text: str) -> str:
    """`plain`, but for colours; they end with the text."""
    kept, *rest = _COLOUR.split(text)
    parts = [part if number % 2 == 0 else plain(part) for number, part in enumerate(rest)]
    end = "\x1b[0m" if rest else ""
    return plain(kept) + "".join(parts) + end
