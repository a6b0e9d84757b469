"""The chat template of a tokenizer, where Hugging Face keeps it. Pure Python."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.contract.config.data import BYTES, Data, TrainTokenizer
from trainer.contract.storage.retries import retried
from trainer.contract.storage.tokenizer_info import VocabularyError

SETTINGS, OWN_FILE = "tokenizer_config.json", "chat_template.jinja"
"""Beside the tokenizer.json; what is in a file of its own counts more."""
TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


@dataclass(frozen=True)
class ChatTemplate:
    """What turns messages into a text."""

    text: str
    """Of Jinja."""
    tokens: Mapping[str, str]
    """What it may name: bos_token, eos_token, ... -> text."""


def chat_template(data: Data) -> ChatTemplate | None:
    """None where the job's tokenizer has none. Raises VocabularyError for a file that is broken."""
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
            "tokenizer", f"{folder / SETTINGS} is none of Hugging Face: {error!r}"
        ) from None
    return ChatTemplate(text, tokens) if text else None


def _default(found: Any) -> str | None:
    """Of several with names, the one of that name."""
    if isinstance(found, list):
        return {one["name"]: one["template"] for one in found}.get("default")
    return found


def _token(found: Any) -> str:
    """Its text, by itself or with what else is said of it."""
    return found["content"] if isinstance(found, dict) else str(found)


def _read(path: Path) -> str | None:
    """None where there is no such file."""
    try:
        return retried(str(path), lambda: path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
