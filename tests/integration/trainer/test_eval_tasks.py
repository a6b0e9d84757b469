"""Tasks of lm-evaluation-harness: its own numbers for models of ours, and records that are bad."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.support import reference_tasks as reference
from tests.support.harness import Bench, bench
from tests.support.jobs import job_of
from trainer import hugging_face
from trainer.contract.storage.corpus import DataError
from trainer.data import eval_tasks, tokenizer
from trainer.data.tokenizer import BYTES
from trainer.evaluation.tasks import TaskEvaluator

RESULTS = json.loads(reference.RESULTS.read_text())


def scored(made: Bench, kind: str) -> tuple[dict[str, float], np.ndarray]:
    """Metrics and log-likelihoods of the model that the harness has evaluated."""
    job = made.program.job
    tasks = eval_tasks.load(job, tokenizer.of(job.data))
    assert tasks
    with (
        jax.set_mesh(made.program.mesh),
        hugging_face.opened(reference.FOLDER / kind, job) as read,
    ):
        shardings = made.program.shardings.params
        params = {
            one.name: read(one.name, one.shape, shardings[one.name]) for one in made.plan.parameters
        }
        evaluator = TaskEvaluator(made.program, tasks)
        metrics = evaluator.evaluate(params, made.loader).metrics
        return dict(metrics), evaluator.likelihoods(params, made.loader)[0]


@cache
def on_one_device(kind: str) -> tuple[dict[str, float], np.ndarray]:
    return scored(bench(reference.job(kind)), kind)


def shares(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if "/acc" in name}


@pytest.mark.parametrize("kind", reference.TOKENIZERS)
def test_numbers_are_those_of_the_harness(kind: str) -> None:
    metrics, scores = on_one_device(kind)
    expected = {
        f"{task}/{name}": value
        for task, result in RESULTS[kind].items()
        for name, value in result["metrics"].items()
    }
    assert shares(metrics) == shares(expected)
    assert metrics == pytest.approx(expected, rel=1e-4)
    likelihoods = [one for result in RESULTS[kind].values() for one in result["log_likelihoods"]]
    np.testing.assert_allclose(scores, likelihoods, rtol=1e-4)


def test_numbers_are_the_same_on_a_mesh_and_in_micro_batches() -> None:
    changes: dict[str, Any] = {"mesh": {"fsdp": 2, "tensor": 2}, "data": {"grad_accum_steps": 2}}
    metrics, scores = scored(bench(reference.job("bytes", **changes), 4), "bytes")
    expected, of_one = on_one_device("bytes")
    assert shares(metrics) == shares(expected)
    np.testing.assert_allclose(scores, of_one, rtol=1e-5)


RECORD = {"text": "a b", "choices": ["c", "d"], "answer": 0}
TASK = {
    "task": "made", "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "made.jsonl"}},
    "output_type": "multiple_choice", "test_split": "test", "doc_to_text": "{{text}}",
    "doc_to_choice": "choices", "doc_to_target": "answer",
}  # fmt: skip


def load(folder: Path, records: list[Any], task: dict[str, Any], **changes: Any) -> Any:
    (folder / "made.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    (folder / "made.yaml").write_text(json.dumps({**TASK, **task}))
    job = job_of(eval={"tasks": [str(folder / "made.yaml")]}, **changes)
    return eval_tasks.load(job, BYTES)


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"text": "a"}, "the records before it have other fields: answer, choices"),
        ({**RECORD, "answer": 0.5}, "'answer' is of the type float, and int before it"),
        ({**RECORD, "answer": 2}, "must be a choice or its index, 0 to 1; found 2"),
        ({**RECORD, "choices": ["c"]}, "must be a list of at least two texts: ['c']"),
        ({**RECORD, "choices": ["c", 7]}, "'doc_to_choice' must be text, found 7"),
        ({**RECORD, "choices": ["c", ""]}, "contains an empty choice"),
        ({**RECORD, "choices": ["c", "d" * 40]}, "is longer than data.seq_len (32 tokens)"),
    ],
)
def test_bad_record_is_reported_with_file_and_line(tmp_path: Path, record: Any, why: str) -> None:
    with pytest.raises(DataError) as raised:
        load(tmp_path, [RECORD, record], {})
    assert "made.jsonl:2: " in str(raised.value) and why in str(raised.value)


@pytest.mark.parametrize(
    ("task", "why"),
    [
        ({"doc_to_text": "question"}, "no field 'question'"),
        ({"doc_to_text": "choices"}, "'doc_to_text' must be text"),
        (
            {"doc_to_text": "{{question}}"},
            "'doc_to_text' cannot be filled: 'question' is undefined",
        ),
        ({"doc_to_text": "{{text.__class__}}"}, "is unsafe"),
        ({"doc_to_text": "{{choices.append(1)}}"}, "'append' of 'list' object is unsafe"),
        ({"doc_to_choice": "{{text}}"}, "expected a list or number of Python, found 'a b'"),
        (
            {"output_type": "loglikelihood", "doc_to_target": "{{''}}"},
            "'' adds no tokens to the text before it",
        ),
    ],
)
def test_task_that_does_not_fit_its_records_names_their_line(
    tmp_path: Path, task: dict[str, Any], why: str
) -> None:
    with pytest.raises(DataError) as raised:
        load(tmp_path, [RECORD], task)
    assert "made.jsonl:1: " in str(raised.value) and why in str(raised.value)


def test_bad_records_are_left_out_as_those_of_data_are(tmp_path: Path) -> None:
    records = [RECORD, {**RECORD, "answer": 2}, RECORD]
    found = load(tmp_path, records, {}, data={"max_bad_records": 1})
    assert (len(found.tasks[0].items), len(found.rows), len(found.bad.found)) == (2, 4, 1)


def test_too_few_examples_are_reported_with_the_tasks_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"made\.yaml:1: num_fewshot: needs 3 .*, found 2"):
        load(tmp_path, [RECORD] * 2, {"num_fewshot": 2, "fewshot_split": "test"})


def test_missing_records_are_reported_with_the_jobs_key(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"eval\.tasks\.0: .*other\.jsonl cannot be read"):
        load(tmp_path, [RECORD], {"dataset_kwargs": {"data_files": {"test": "other.jsonl"}}})
    with pytest.raises(DataError, match=r"eval\.tasks\.0: .*made\.yaml has no record to evaluate"):
        load(tmp_path, [], {})


def test_first_examples_are_the_same_for_every_record(tmp_path: Path) -> None:
    records = [{**RECORD, "text": text} for text in ("a", "b", "c")]
    task = {
        "num_fewshot": 1, "fewshot_split": "test", "fewshot_config": {"sampler": "first_n"},
        "fewshot_delimiter": "|",
    }  # fmt: skip
    found = load(tmp_path, records, task)
    contexts = [item.requests[0].context for item in found.tasks[0].items]
    assert contexts == ["b c|a", "a c|b", "a c|c"]
