"""A job's tokenizer for `transformers`, with the same ids.

The tokenizer of bytes puts the separator before every text.
"""

import json
from pathlib import Path
from typing import Any

from trainer.contract.config.data import BYTES, Data, TrainTokenizer
from trainer.contract.storage.chat_template import chat_template
from trainer.contract.storage.tokenizer_info import OF_BYTES, vocabulary

EOS_ID, EOS_TOKEN = OF_BYTES.eos_id, OF_BYTES.eos_token


def files(data: Data, trained: str = "") -> dict[str, dict[str, Any]]:
    """Returns file name -> content; the file of a given or trained tokenizer is unchanged."""
    if data.tokenizer == BYTES:
        content = _tokenizer()
    elif isinstance(data.tokenizer, TrainTokenizer):
        content = json.loads(trained)
    else:
        content = json.loads(Path(data.tokenizer).expanduser().read_text(encoding="utf-8"))
    return {"tokenizer.json": content, "tokenizer_config.json": _settings(data)}


def _settings(data: Data) -> dict[str, Any]:
    eos_token, template = vocabulary(data).eos_token, chat_template(data)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": eos_token,
        "eos_token": eos_token,
        "model_max_length": data.seq_len,
        # transformers 4 would add token_type_ids, which Llama models reject.
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        # The separator's name inside a text is encoded as bytes, like any other text.
        "split_special_tokens": data.tokenizer == BYTES,
        **({"chat_template": template.text, **template.tokens} if template else {}),
    }


def _tokenizer() -> dict[str, Any]:
    """Returns a tokenizer with a vocabulary of single bytes and no merges."""
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_eos()],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": _eos_first(),
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {character: byte for byte, character in enumerate(_characters())},
            "merges": [],
        },
    }


def _eos() -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": EOS_ID, "content": EOS_TOKEN, **flags, "special": True}


def _eos_first() -> dict[str, Any]:
    eos: dict[str, Any] = {"SpecialToken": {"id": EOS_TOKEN, "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    ids = {"id": EOS_TOKEN, "ids": [EOS_ID], "tokens": [EOS_TOKEN]}
    return {
        "type": "TemplateProcessing",
        "single": [eos, first],
        "pair": [eos, first, eos, second],
        "special_tokens": {EOS_TOKEN: ids},
    }


def _characters() -> list[str]:
    """Returns each byte's character in byte-level vocabularies: a printable byte is its own.

    References:
        `bytes_to_unicode` of GPT-2: https://github.com/openai/gpt-2, src/encoder.py
    """
    own = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in own else next(others)) for byte in range(256)]
