"""A tokenizer with a chat template, and records of conversations."""

import json
from pathlib import Path
from typing import Any

from tests.support.tokenizer_files import make
from trainer.contract.config.data import Data

TEMPLATE = """\
{{ bos_token }}
{%- for message in messages %}
    {{- '<' + message['role'] + '>' }}
    {%- if message['role'] == 'assistant' %}
        {%- generation %}{{ message['content'] + '<end>' }}{% endgeneration %}
    {%- else %}
        {{- message['content'] + '<end>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %}
"""


def tokenizer(folder: Path, template: str = TEMPLATE) -> str:
    """The path of a BPE with this template beside it."""
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": template,
        "bos_token": {"__type": "AddedToken", "content": "<|endoftext|>"},
        "eos_token": "<|endoftext|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return str(make(folder))


def conversation(*contents: str) -> dict[str, Any]:
    """Of the user and the assistant in turns."""
    roles = ("user", "assistant") * len(contents)
    pairs = zip(roles, contents, strict=False)
    return {"messages": [{"role": role, "content": content} for role, content in pairs]}


def write(path: Path, *records: Any) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def data(path: str, **settings: Any) -> Data:
    sizes = {"source": "chat", "seq_len": 8, "global_batch": 1, "validation_fraction": 0.0}
    return Data.model_validate({**sizes, "path": path, **settings})
