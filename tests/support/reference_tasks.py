"""Metrics and log-likelihoods that lm-evaluation-harness gives for small models of ours, as JSON.

For tests/integration/trainer/harness_tasks/, which has the task files, the models and the results:

    uv run --with 'lm_eval[hf]==0.4.13' python -m tests.support.reference_tasks

It trains the models, exports them, and lets the harness read the exported folders.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import jax

from tests.support import tokenizer_files
from tests.support.harness import Bench
from tests.support.jobs import job_of, world_of
from trainer import hugging_face
from trainer.contract.config.job import Job

FOLDER = Path(__file__).parents[1] / "integration" / "trainer" / "harness_tasks"
RESULTS = FOLDER / "results.json"
TASKS = ("sounds", "last_word", "who", "noise")
TOKENIZERS = ("bytes", "bpe")
"""The first puts the separator before every text; the second has no special tokens of its own."""
MODEL = {"layers": 1, "d_model": 16, "heads": 2, "kv_heads": 1, "d_ff": 32}
SEQ_LEN, STEPS = 72, 400


def job(tokenizer: str, folder: Path = FOLDER, **changes: Any) -> Job:
    """Returns a job that evaluates the tasks; `folder` has the tokenizer."""
    data = {"source": "text", "path": str(FOLDER / "*.jsonl"), "seq_len": SEQ_LEN}
    if tokenizer == "bpe":
        data["tokenizer"] = str(folder / tokenizer / "tokenizer.json")
    tasks = [str(FOLDER / f"{task}.yaml") for task in TASKS]
    settings: dict[str, Any] = {"model": MODEL, "data": data, "eval": {"tasks": tasks}}
    for key, change in changes.items():
        settings[key] = {**settings.get(key, {}), **change}
    return job_of(**settings)


def main() -> None:
    results = {}
    for tokenizer in TOKENIZERS:
        with tempfile.TemporaryDirectory() as folder:
            _export(tokenizer, Path(folder), FOLDER / tokenizer)
        results[tokenizer] = _evaluate(FOLDER / tokenizer)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def _export(tokenizer: str, folder: Path, to: Path) -> None:
    """Trains a model and writes it into the folder `to`."""
    (folder / "corpus.txt").write_text("\n\n".join(_sentences()))
    (folder / tokenizer).mkdir()
    tokenizer_files.make(folder / tokenizer)
    corpus = str(folder / "corpus.txt")
    training = job(tokenizer, folder, data={"path": corpus}, optimizer={"learning_rate": 1e-2})
    made = Bench.of(training.model_copy(update={"steps": STEPS}), world_of())
    with jax.set_mesh(made.program.mesh):
        state, metrics = made.run(STEPS)
    print(f"{tokenizer}: loss {metrics[0].loss:.3f} -> {metrics[-1].loss:.3f}")
    shutil.rmtree(to, ignore_errors=True)
    hugging_face.export(training, state.params, to, "bfloat16")


def _sentences() -> Iterator[str]:
    """Yields texts about what animals say, most of which are right."""
    lines = (FOLDER / "sounds_train.jsonl").read_text().splitlines()
    known = [json.loads(line) for line in lines]
    for number in range(40):
        for one in known:
            other = known[number % len(known)]
            sound = other["sound"] if number % 4 == 3 else one["sound"]
            yield f"the {one['animal']} says {sound}\nanimals of {one['place']}"


def _evaluate(model: Path) -> dict[str, Any]:
    """Returns what the harness reports of a model's folder, by task."""
    os.environ |= {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}
    harness, models = import_module("lm_eval"), import_module("lm_eval.models.huggingface")
    tasks = import_module("lm_eval.tasks")
    found = harness.simple_evaluate(
        model=models.HFLM(pretrained=str(model), dtype="float32", device="cpu", batch_size=4),
        tasks=list(TASKS),
        task_manager=tasks.TaskManager(include_path=str(FOLDER), include_defaults=False),
        bootstrap_iters=0,
    )
    return {
        task: {
            "metrics": {
                name.removesuffix(",none"): value
                for name, value in found["results"][task].items()
                if name.endswith(",none") and "stderr" not in name
            },
            "log_likelihoods": [
                float(f"{response[0]:.8g}")
                for sample in found["samples"][task]
                for response in sample["filtered_resps"]
            ],
        }
        for task in TASKS
    }


if __name__ == "__main__":
    os.chdir(FOLDER)  # the harness looks for the records here
    main()
