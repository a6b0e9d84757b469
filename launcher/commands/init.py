"""`launch init`: writes a commented job file that runs as it is."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from launcher.core.errors import UsageError
from trainer.contract.config.data import Data
from trainer.contract.config.model import Model
from trainer.contract.config.presets import PRESETS
from trainer.contract.config.yaml import dump, dump_inline
from trainer.contract.hugging_face.config import CONFIG, is_hugging_face
from trainer.contract.hugging_face.model_reader import read_model
from trainer.contract.records.checkpoint_metadata import TOKENIZER
from trainer.contract.storage.chat_template import end_token
from trainer.contract.storage.tokenizer_info import VocabularyError, vocabulary

TEMPLATE = """\
# A training job.
#
#   launch {path}                                    run it on all devices of this machine
#   launch plan {path}                               show the plan; nothing starts
#   launch --cluster tpu-v4-32 --simulate {path}     run it on a simulated pod
#   launch {path} steps=20 mesh.tensor=2             change any key on the command line

name: {name}            # the run's folder is runs/{name}
steps: 150
seed: 0                 # the same seed gives the same losses on any mesh and any number of hosts

{model_and_data}
# Sizes of the mesh axes: pipeline, data, fsdp, expert, context, tensor. -1: all other devices.
mesh: {{fsdp: -1, tensor: 1}}

optimizer: {{name: {optimizer}, schedule: cosine, warmup_steps: 10}}
eval: {{every_steps: 50, batches: 8}}
sample: {{prompt: "def ", tokens: 200, temperature: 0.5}}
# `launch resume {name}` continues from the newest checkpoint.
checkpoint: {{{init_from}every_steps: 50, keep: 3}}
"""
NEW_MODEL = """\
# A decoder-only transformer. `preset: llama3-8b` instead of these keys gives a known shape;
# `module: my_package.my_model:build` trains a Flax NNX model of your own.
model: {layers: 4, d_model: 128, heads: 4, kv_heads: 2, d_ff: 384}

# The source of Python's standard library as bytes: nothing is downloaded. Your own files:
# `source: text`, `path: corpus/*.txt`, and a tokenizer.json as `tokenizer`.
data: {source: stdlib, tokenizer: bytes, seq_len: 256, global_batch: 16}
"""
GIVEN_MODEL = """\
# The model of {config}.
{model}
# The source of Python's standard library. Your own files: `source: text`, `path: corpus/*.txt`.
data: {{source: stdlib, {tokenizer}, seq_len: 256, global_batch: 16}}
"""


@dataclass(frozen=True, kw_only=True)
class InitResult:
    """A job file that was written."""

    job_file: str
    name: str
    """Name of the job in it."""
    command: str
    """The command that runs it."""


def write_job(path: Path, weights: Path | None = None) -> InitResult:
    """Writes a job file whose job is named after `path`.

    With `weights`, the folder of a Hugging Face model, the job begins with that model. Raises
    UsageError when the file exists already or cannot be written, and for a folder without a model
    that the decoder supports.
    """
    name = re.sub(r"[^A-Za-z0-9]+", "-", path.stem).strip("-")[:100] or "job"
    parts = _of_new_model() if weights is None else _of_given_model(weights)
    try:
        _write_new(path, TEMPLATE.format(path=_word(path), name=name, **parts))
    except FileExistsError:
        raise UsageError(f"{path} exists already: name another file, or delete it first") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    command = shlex.join(["launch", str(path)])
    return InitResult(job_file=str(path), name=name, command=command)


def _of_new_model() -> dict[str, str]:
    optimizer = "muon, learning_rate: 2e-2"
    return {"model_and_data": NEW_MODEL, "optimizer": optimizer, "init_from": ""}


def _of_given_model(weights: Path) -> dict[str, str]:
    """Returns the parts of a job that begins with the model in a Hugging Face folder."""
    tokenizer = weights / TOKENIZER
    if not is_hugging_face(weights):
        raise UsageError(f"{weights}: expected the folder of a Hugging Face model, with {CONFIG}")
    model = read_model(weights)
    if not tokenizer.is_file():
        raise UsageError(
            f"{tokenizer} is missing. Write it with transformers: "
            "`AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)`"
        )
    model_and_data = GIVEN_MODEL.format(
        config=_word(weights / CONFIG),
        model=_model_section(model),
        tokenizer=_tokenizer_keys(tokenizer),
    )
    return {
        "model_and_data": model_and_data,
        "optimizer": "adamw, learning_rate: 1e-5",
        "init_from": f"init_from: {dump_inline(str(weights))}, ",
    }


def _tokenizer_keys(tokenizer: Path) -> str:
    """Returns the YAML of the keys of a job's `data` for a tokenizer.json.

    Raises UsageError for a file that is none.
    """
    keys = {"tokenizer": str(tokenizer)}
    try:
        vocabulary(Data(source="stdlib", seq_len=1, global_batch=1, tokenizer=str(tokenizer)))
    except VocabularyError as error:
        if error.key == "tokenizer":
            raise UsageError(str(error)) from None
        if token := end_token(tokenizer):
            keys["eos_token"] = token
    return dump_inline(keys)[1:-1]


def _model_section(model: Model) -> str:
    """Returns the YAML of a job's `model`: its preset, if it has one."""
    for preset in PRESETS:
        if model == Model.model_validate({"preset": preset}).model_copy(update={"preset": None}):
            return f"model: {{preset: {preset}}}\n"
    return dump({"model": model.model_dump(mode="json", exclude_defaults=True)})


def _word(path: Path) -> str:
    """Returns a path as a word of a command line, which must not end the line of a comment."""
    word = shlex.quote(str(path))
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in word)


def _write_new(path: Path, text: str) -> None:
    """Writes a new file, whole or not at all. Raises FileExistsError."""
    with path.open("x", encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
        except OSError:  # the disk is full
            path.unlink(missing_ok=True)
            raise
