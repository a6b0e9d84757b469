"""Removes secrets from text: known values in all their spellings, and what looks like a secret."""

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote

REDACTED = "[redacted]"
LEAST_CHARACTERS = 6
"""Length from which a known value is replaced inside of words, too."""
_ENDING = (
    r"(?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|KEY|KEY_ID|WEBHOOK|COOKIE|SIG"
    r"|SIGNATURE|AUTH|AUTHORIZATION|DSN)"
)
_NAME = rf"(?<![\w.-])[\w.-]*{_ENDING}"
_VALUE = (
    r"""(?:\\"(?:[^"\\\n]|\\[^"])*\\?"?|"(?:[^"\\\n]|\\.)*"?|'[^'\n]*'?"""
    r"""|(?:(?:Bearer|Basic)\s+)?[^\s,;&'"}\]]+)"""
)
SECRET_NAME = re.compile(rf"{_ENDING}$", re.IGNORECASE)
"""Pattern for the end of a variable's name that marks its value as a secret."""
NAMED = (
    # token: the whole rest of the line
    re.compile(rf"^(\s*(?:- )?{_NAME}:[ \t]+)[^\s\[{{\"'].*$", re.IGNORECASE | re.MULTILINE),
    # TOKEN=..., "token": "...", \"token\": \"...\", Authorization: Bearer ...
    re.compile(rf"""({_NAME}\\?["']?\s*[:=]\s*){_VALUE}""", re.IGNORECASE),
    # --token ...
    re.compile(rf"((?<![\w.-])--[\w.-]*{_ENDING}[ \t]+){_VALUE}", re.IGNORECASE),
    # https://user:password@host
    re.compile(r"(://)[^\s/@:]*:[^\s/@]+(?=@)"),
    re.compile(r"(\b(?:Bearer|Basic)\s+)[\w+/=.~-]{8,}"),
)
"""Patterns of secrets behind a first group that is kept."""
RECOGNIZED = re.compile(
    r"-----BEGIN [^-\n]*PRIVATE KEY-----.*?(?:-----END [^-\n]*PRIVATE KEY-----|\Z)"
    r"|\A(?:(?!-----BEGIN).)*?-----END [^-\n]*PRIVATE KEY-----"
    r"|\bAKIA[0-9A-Z]{16}\b"
    r"|\bgh[pousr]_\w{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{20,}"
    r"|\bhf_\w{20,}|\bsk-[\w-]{20,}|\bxox[abeoprs]-[\w-]{10,}"
    r"|\bAIza[\w-]{35}|\bya29\.[\w-]{20,}"
    r"|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]+"
    r"|https://hooks\.slack\.com/\S+",
    re.DOTALL,
)
"""Secrets that are recognized without a name: keys and tokens of common services."""


class Redactor:
    """Replaces secrets in text by REDACTED."""

    def __init__(self, declared: Iterable[str] = (), environment: Mapping[str, str] = {}) -> None:
        """`declared`: values of a job's secrets. `environment`: variables, some with secrets."""
        named = [v for name, v in environment.items() if SECRET_NAME.search(name)]
        values = {value for value in declared if value.strip()}
        values |= {value for value in named if len(value) >= LEAST_CHARACTERS}
        spellings = {text for value in values for text in _spellings(value)}
        # The longest first: one value may be a part of another.
        ordered = sorted(spellings, key=lambda text: (-len(text), text))
        self._known = re.compile("|".join(map(_pattern, ordered))) if ordered else None

    def __call__(self, text: str) -> str:
        """Returns the text without secrets."""
        if self._known:
            text = self._known.sub(REDACTED, text)
        text = RECOGNIZED.sub(REDACTED, text)
        for pattern in NAMED:
            text = pattern.sub(_keep_quotes, text)
        return text


def _keep_quotes(match: re.Match[str]) -> str:
    """Replaces what follows the first group. A quoted value keeps its quotes: JSON stays JSON."""
    value = match[0].removeprefix(match[1])
    quoted = re.match(r"""\\?"|'""", value)
    mark = quoted[0] if quoted else ""
    return f"{match[1]}{mark}{REDACTED}{mark if value.endswith(mark) else ''}"


def _spellings(value: str) -> Iterator[str]:
    """Yields a value as it is, line by line, and as it is in JSON, in a URL and in base64."""
    yield value
    yield from (line for line in value.splitlines() if len(line.strip()) >= LEAST_CHARACTERS)
    yield json.dumps(value)[1:-1]
    yield json.dumps(json.dumps(value)[1:-1])[1:-1]
    yield repr(value)[1:-1]
    yield quote(value, safe="")
    if len(value) >= LEAST_CHARACTERS:
        yield base64.b64encode(value.encode()).decode().rstrip("=")
        yield base64.urlsafe_b64encode(value.encode()).decode().rstrip("=")


def _pattern(text: str) -> str:
    escaped = re.escape(text)
    return escaped if len(text) >= LEAST_CHARACTERS else rf"(?<!\w){escaped}(?!\w)"
