"""Multiple choice: the likeliest of the choices, against a reference that is computed by hand."""

import itertools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.harness import Bench, bench
from tests.support.jobs import job_of
from trainer.contract.config.job import Job
from trainer.contract.storage.corpus import DataError
from trainer.data.eval_tasks import load
from trainer.data.questions import METRICS
from trainer.data.requests import Item, Request, Task
from trainer.data.tokenizer import BYTES
from trainer.evaluation.tasks import TaskEvaluator, measured
from trainer.telemetry.metrics import MultipleChoiceResult

ASKED = [
    {"question": "1+1 is", "choices": ["2", "three", "fifty"], "answer": 0},
    {"question": "a rose is a", "choices": ["rose", "bicycle with ü"], "answer": 0},
    {"question": "q" * 50, "choices": ["x", "yy", "zzz", "q"], "answer": 3},
    {"question": "", "choices": ["import os", "os import"], "answer": 0},
    {"question": "def f(", "choices": ["self", "!!"], "answer": 1},
]


def job(folder: Path, asked: list[Any] = ASKED, **changes: Any) -> Job:
    path = folder / "questions.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in asked))
    return job_of(eval={"multiple_choice": {"path": str(path)}}, **changes)


def evaluator(made: Bench) -> TaskEvaluator:
    asked = load(made.program.job, BYTES)
    assert asked
    return TaskEvaluator(made.program, asked)


def answered(made: Bench) -> MultipleChoiceResult | None:
    with jax.set_mesh(made.program.mesh):
        return evaluator(made).evaluate(made.initial().params, made.loader).choices


def by_hand(made: Bench) -> list[list[float]]:
    """Log-likelihood of each choice: its bytes after what was before, one row at a time."""
    params, found = made.initial().params, []
    seq_len = made.program.job.data.seq_len

    @jax.jit
    def logits_of(params: Any, row: jax.Array) -> jax.Array:
        model = made.program.network.bind(params)
        features, _ = model.features(row, jnp.zeros_like(row), jnp.arange(seq_len)[None])
        return model.logits(features)[0]

    for record in ASKED:
        found.append([])
        for choice in record["choices"]:
            whole = BYTES.encode(f"{record['question']} {choice}".encode())[-seq_len - 1 :]
            # What comes after a text changes nothing in it.
            row = jnp.zeros((1, seq_len), jnp.int32).at[0, : len(whole) - 1].set(whole[:-1])
            choice_from = len(whole) - 1 - len(f" {choice}".encode())
            log_shares = jax.nn.log_softmax(logits_of(params, row))
            each = log_shares[np.arange(len(whole) - 1), whole[1:]]
            found[-1].append(float(each[choice_from:].sum()))
    return found


def test_choices_are_those_of_a_reference(tmp_path: Path) -> None:
    made = bench(job(tmp_path))
    with jax.set_mesh(made.program.mesh):
        scores = by_hand(made)
    plain = [int(np.argmax(of_it)) for of_it in scores]
    by_length = [
        int(np.argmax([s / len(c) for s, c in zip(of_it, record["choices"], strict=True)]))
        for of_it, record in zip(scores, ASKED, strict=True)
    ]
    right = [record["answer"] for record in ASKED]
    shares = [np.mean([a == b for a, b in zip(x, right, strict=True)]) for x in (plain, by_length)]
    assert answered(made) == MultipleChoiceResult(*map(float, shares))
    with jax.set_mesh(made.program.mesh):
        ours, _ = evaluator(made).likelihoods(made.initial().params, made.loader)
    np.testing.assert_allclose(ours, list(itertools.chain(*scores)), rtol=1e-4)


def test_the_number_is_the_same_on_a_mesh_and_in_micro_batches(tmp_path: Path) -> None:
    split = job(tmp_path, mesh={"fsdp": 2, "tensor": 2}, data={"grad_accum_steps": 2})
    made = bench(split, 4)
    assert answered(made) == answered(bench(job(tmp_path)))


def test_likeliest_choice_and_likeliest_for_its_length_differ() -> None:
    nothing = Request("", "")
    two = Item("", [nothing] * 2, ("ab", "abcd"), [1])
    three = Item("", [nothing] * 3, ("a", "b", "c"), [2])
    task = Task("", "", "", METRICS, [two, three])
    scores = np.array([-2.0, -3.0, -1.0, -1.0, -0.5])
    assert measured(task, scores, scores > 0) == {"acc": 0.5, "acc_norm": 1.0}


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"choices": ["a", "b"], "answer": 0}, "no field 'question'"),
        ({"question": "q", "choices": ["a"], "answer": 0}, "must be a list of at least two items"),
        ({"question": "q", "choices": ["a", 7], "answer": 0}, "'choices' must be text, found 7"),
        ({"question": "q", "choices": ["a", ""], "answer": 0}, "contains an empty choice"),
        (
            {"question": "q", "choices": ["a", "b"], "answer": 2},
            "must be the index of a choice, 0 to 1; found 2",
        ),
        ({"question": "q", "choices": ["a", "b"], "answer": "b"}, "0 to 1; found 'b'"),
        ({"question": "q", "choices": ["a", "b" * 40], "answer": 1}, "longer than data.seq_len"),
    ],
)
def test_bad_question_is_reported_with_file_and_line(tmp_path: Path, record: Any, why: str) -> None:
    with pytest.raises(DataError) as told:
        load(job(tmp_path, [ASKED[0], record]), BYTES)
    assert "questions.jsonl:2: " in str(told.value) and why in str(told.value)
    allowing = job(tmp_path, [ASKED[0], record], data={"max_bad_records": 1})
    found = load(allowing, BYTES)
    assert found and len(found.tasks[0].items) == len(found.bad.found) == 1


def test_missing_file_or_file_without_question_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"multiple_choice\.path: .* has no record to evaluate"):
        load(job(tmp_path, []), BYTES)
    wanted = job(tmp_path)
    (tmp_path / "questions.jsonl").unlink()
    with pytest.raises(DataError, match=r"multiple_choice\.path: .* cannot be read"):
        load(wanted, BYTES)
