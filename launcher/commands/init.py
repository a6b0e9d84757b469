"""`launch init`: writes a commented job file that runs as it is."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from launcher.core.errors import UsageError

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

# A decoder-only transformer. `preset: llama3-8b` instead of these keys gives a known shape;
# `module: my_package.my_model:build` trains a Flax NNX model of your own.
model: {{layers: 4, d_model: 128, heads: 4, kv_heads: 2, d_ff: 384}}

# The source of Python's standard library as bytes: nothing is downloaded. Your own files:
# `source: text`, `path: corpus/*.txt`, and a tokenizer.json as `tokenizer`.
data: {{source: stdlib, tokenizer: bytes, seq_len: 256, global_batch: 16}}

# Sizes of the mesh axes: pipeline, data, fsdp, expert, context, tensor. -1: all other devices.
mesh: {{fsdp: -1, tensor: 1}}

optimizer: {{name: muon, learning_rate: 2e-2, schedule: cosine, warmup_steps: 10}}
eval: {{every_steps: 50, batches: 8}}
sample: {{prompt: "def ", tokens: 200, temperature: 0.5}}
checkpoint: {{every_steps: 50, keep: 3}}     # `launch resume {name}` continues from the newest
"""


@dataclass(frozen=True, kw_only=True)
class InitResult:
    """A job file that was written."""

    job_file: str
    name: str
    """Name of the job in it."""
    command: str
    """The command that runs it."""


def write_job(path: Path) -> InitResult:
    """Writes a job file whose job is named after `path`.

    Raises UsageError when the file exists already or cannot be written.
    """
    name = re.sub(r"[^A-Za-z0-9]+", "-", path.stem).strip("-")[:100] or "job"
    try:
        _write_new(path, TEMPLATE.format(path=_word(path), name=name))
    except FileExistsError:
        raise UsageError(f"{path} exists already: name another file, or delete it first") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    command = shlex.join(["launch", str(path)])
    return InitResult(job_file=str(path), name=name, command=command)


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
