"""The tasks of an evaluation: the questions of the job and its task files, as examples."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np

from trainer.contract.config.job import Job
from trainer.contract.config.loader import Loaded
from trainer.contract.config.task_file import TaskFile, load_tasks
from trainer.contract.storage.corpus import DataError
from trainer.data import questions, task_texts
from trainer.data.documents import BadRecords
from trainer.data.few_shot import FewShot
from trainer.data.packing import Batch, padded_example
from trainer.data.readers import BadRecordError, Record
from trainer.data.requests import Item, Task, encoded, records
from trainer.data.tokenizer import Tokenizer

Rows = list[np.ndarray]
"""Tokens of requests as int32, truncated on the left, with ~token for those of the context."""


@dataclass(frozen=True)
class EvalTasks:
    """All tasks of a job, and their requests as examples."""

    tasks: Sequence[Task]
    rows: Rows
    """Those of the first task's items, then of the second's."""
    seq_len: int
    bad: BadRecords
    digests: Sequence[str]
    """Hash of the tokens and answers of each task."""

    def example(self, number: int) -> Batch:
        """Returns the example of a request by its number."""
        # Each is one text: attention does not stop at a separator inside it.
        return padded_example(self.rows[number], number, self.seq_len, None)


def load(job: Job, encoder: Tokenizer) -> EvalTasks | None:
    """Loads the tasks, or returns None when the job has none.

    Raises DataError, and ConfigError for what is wrong with a task file.
    """
    bad = BadRecords(job.data.max_bad_records)
    found = [_encoded(task, encoder, job.data.seq_len, bad) for task in _tasks(job, bad)]
    if not found:
        return None
    rows = [row for _, of_task in found for row in of_task]
    digests = [_digest(task, of_task) for task, of_task in found]
    return EvalTasks([task for task, _ in found], rows, job.data.seq_len, bad, digests)


def _tasks(job: Job, bad: BadRecords) -> Iterator[Task]:
    settings = job.eval and job.eval.multiple_choice
    if settings:
        yield questions.read(settings, bad)
    for number, loaded in enumerate(load_tasks(job)):
        yield _of_file(loaded, f"eval.tasks.{number}", bad)


def _of_file(loaded: Loaded[TaskFile], key: str, bad: BadRecords) -> Task:
    """Returns the task of a task file. Raises DataError."""
    task, items = loaded.value, list[Item]()
    asked = list(_records(loaded, task.split, key, bad))
    pool = asked
    if task.num_fewshot and task.examples_split != task.split:
        pool = list(_records(loaded, task.examples_split, key, bad))
    examples = FewShot(loaded, [record for _, record in pool])
    for place, record in asked:
        before = examples.before(record)
        with bad.left_out(place):
            items.append(task_texts.item(task, place, record, before))
    return Task(key, loaded.source, task.task, task.metrics, items)


def _records(
    loaded: Loaded[TaskFile], split: str, key: str, bad: BadRecords
) -> Iterator[tuple[str, Record]]:
    """Yields file:line and content of each record of a split. All must have the same fields."""
    kinds: dict[str, type | None] = {}
    folder = Path(loaded.source).parent
    for name in loaded.value.dataset_kwargs.by_split[split]:
        path = folder / Path(name).expanduser()
        for place, record in records(str(path), path, key, bad):
            with bad.left_out(place):
                _check_alike(record, kinds)
                yield place, record


def _check_alike(record: Record, kinds: dict[str, type | None]) -> None:
    """Checks that a record has the fields of those before it, with values of the same types.

    The harness would fill in missing fields, and convert numbers of different types.
    """
    if kinds and record.keys() != kinds.keys():
        differing = ", ".join(sorted(record.keys() ^ kinds.keys()))
        raise BadRecordError(f"the records before it have other fields: {differing}")
    for field, value in record.items():
        kind = kinds.get(field)
        if kind and value is not None and type(value) is not kind:
            raise BadRecordError(
                f"{field!r} is of the type {type(value).__name__}, and {kind.__name__} before it"
            )
        kinds[field] = kind or (None if value is None else type(value))


def _encoded(task: Task, encoder: Tokenizer, seq_len: int, bad: BadRecords) -> tuple[Task, Rows]:
    """Returns the task with the items that fit, and their rows. Raises DataError without any."""
    every = encoded([request for item in task.items for request in item.requests], encoder)
    items, rows = list[Item](), Rows()
    for item in task.items:
        of_item = list(islice(every, len(item.requests)))
        with bad.left_out(item.place):
            for row, request in zip(of_item, item.requests, strict=True):
                _check_fits(row, request.continuation, seq_len)
            items.append(item)
            rows += [row[-seq_len - 1 :] for row in of_item]
    if not items:
        raise DataError(f"{task.key}: {task.source} has no record to evaluate")
    return replace(task, items=items), rows


def _check_fits(row: np.ndarray, text: str, seq_len: int) -> None:
    if not np.any(row < 0):
        raise BadRecordError(f"the text before {text[:20]!r} has no tokens")
    asked = int(np.sum(row >= 0))
    if not asked:
        raise BadRecordError(f"{text[:20]!r} adds no tokens to the text before it")
    if asked > seq_len:
        raise BadRecordError(f"{text[:20]!r} is longer than data.seq_len ({seq_len} tokens)")


def _digest(task: Task, rows: Rows) -> str:
    total = hashlib.sha256(repr([(item.choices, item.answers) for item in task.items]).encode())
    for row in rows:
        total.update(row.tobytes())
    return total.hexdigest()
