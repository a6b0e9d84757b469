"""The chat template of a tokenizer, read from Hugging Face's files. Pure Python."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.contract.config.data import BYTES, Data, TrainTokenizer
from trainer.contract.storage.retries import retried
from trainer.contract.storage.tokenizer_info import VocabularyError

SETTINGS, OWN_FILE = "tokenizer_config.json", "chat_template.jinja"
"""Files beside the tokenizer.json; a template in its own file takes precedence."""
TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


@dataclass(frozen=True)
class ChatTemplate:
    """A template that converts messages to text."""

    text: str
    """Jinja source."""
    tokens: Mapping[str, str]
    """Special tokens that it may use: bos_token, eos_token, ... -> text."""


def chat_template(data: Data) -> ChatTemplate | None:
    """Returns the template of the job's tokenizer, or None without one. Raises VocabularyError."""
    if data.tokenizer == BYTES or isinstance(data.tokenizer, TrainTokenizer):
        return None
    folder = Path(data.tokenizer).expanduser().parent
    try:
        settings = json.loads(_read(folder / SETTINGS) or "{}")
        text = _read(folder / OWN_FILE) or _default(settings.get("chat_template"))
        given = {f"{name}_token": settings.get(f"{name}_token") for name in TOKENS}
        tokens = {name: _token(token) for name, token in given.items() if token}
    except (OSError, ValueError, AttributeError, LookupError, TypeError) as error:
        raise VocabularyError(
            "tokenizer", f"{folder / SETTINGS} is not a Hugging Face tokenizer config: {error!r}"
        ) from None
    return ChatTemplate(text, tokens) if text else None


def end_token(tokenizer: Path) -> str | None:
    """Returns the end-of-text token that the settings beside a tokenizer.json name, if they do."""
    try:
        token = json.loads(_read(tokenizer.parent / SETTINGS) or "{}").get("eos_token")
        return token and _token(token)
    except (OSError, ValueError, AttributeError, LookupError):
        return None


def _default(found: Any) -> str | None:
    """Returns the template; from a list of named templates, the one named "default"."""
    if isinstance(found, list):
        return {one["name"]: one["template"] for one in found}.get("default")
    return found


def _token(found: Any) -> str:
    """Returns the text of a token, which may be a string or a dict with more properties."""
    return found["content"] if isinstance(found, dict) else str(found)


def _read(path: Path) -> str | None:
    """Returns the text of a file, or None when it does not exist."""
    try:
        return retried(str(path), lambda: path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
