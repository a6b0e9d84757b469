"""Makes text of programs and other machines safe for a terminal.

Control characters can move the cursor, set the title or write the clipboard. Of those in a run's
files, only colours reach the terminal.
"""

import re

_COLOUR = re.compile(r"(\x1b\[[0-9;:]*m)")
_CONTROL: dict[int, str | None] = {
    code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"
}
_CONTROL[ord("\r")] = " "


def plain(text: str) -> str:
    """Removes control characters, except for tabs and newlines."""
    return text.translate(_CONTROL)


def coloured(text: str) -> str:
    """Removes control characters as `plain` does, but keeps colours and resets them at the end."""
    kept, *rest = _COLOUR.split(text)
    parts = [part if number % 2 == 0 else plain(part) for number, part in enumerate(rest)]
    end = "\x1b[0m" if rest else ""
    return plain(kept) + "".join(parts) + end
