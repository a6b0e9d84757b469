"""Tasks of an evaluation by likelihood: the likeliest choice, and the likelihood of a text.

The letters of dims are those of trainer/model/__init__.py.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from trainer.contract.storage.corpus import DataError
from trainer.data.eval_tasks import EvalTasks
from trainer.data.loader import BatchLoader, batch_shardings
from trainer.data.packing import Batch
from trainer.data.requests import Item, Task
from trainer.distributed import consensus, initialize
from trainer.distributed import mesh as meshes
from trainer.model import Params
from trainer.programs import executables
from trainer.step.loss import likelihoods_by_row
from trainer.step.train_step import TrainProgram
from trainer.telemetry.metrics import LARGEST_EXPONENT, MultipleChoiceResult, TaskResults

Scores = tuple[jax.Array, jax.Array, jax.Array | None]
"""Numbers of examples, their log-likelihoods in nats, and whether all tokens are likeliest."""


class TaskEvaluator:
    """Evaluates tasks. Compiles once, at the first evaluation.

    Every process must make the same calls. Raises DataError when hosts have different tasks.
    """

    def __init__(self, program: TrainProgram, tasks: EvalTasks) -> None:
        self._network, self._tasks = program.network, tasks
        self._deadlines = program.job.deadlines
        whole = meshes.replicated(program.mesh)
        places = (program.shardings.params, batch_shardings(program.mesh))
        self._score = jax.jit(self._scores, in_shardings=places, out_shardings=whole)
        self._compiled: Callable[[Params, Batch], Scores] | None = None
        _check_all_alike(tasks)

    def evaluate(self, params: Params, loader: BatchLoader) -> TaskResults:
        scores, is_greedy = self.likelihoods(params, loader)
        choices, numbers, first = None, dict[str, float](), 0
        for task in self._tasks.tasks:
            of_task = slice(first, first := first + sum(len(item.requests) for item in task.items))
            found = measured(task, scores[of_task], is_greedy[of_task])
            if task.name:
                numbers |= {f"{task.name}/{metric}": value for metric, value in found.items()}
            else:
                choices = MultipleChoiceResult(found["acc"], found["acc_norm"])
        return TaskResults(choices, numbers)

    def likelihoods(self, params: Params, loader: BatchLoader) -> tuple[np.ndarray, np.ndarray]:
        """Returns the log-likelihood of each request in nats, and whether its tokens are likeliest.

        All are false for a custom model.
        """
        count = len(self._tasks.rows)
        scores, is_greedy = np.zeros(count, np.float32), np.zeros(count, bool)
        for batch in loader.given(count, self._tasks.example):
            numbers, found, likeliest = jax.device_get(self._ready(params, batch)(params, batch))
            is_real = numbers >= 0
            scores[numbers[is_real]] = found[is_real]
            if likeliest is not None:
                is_greedy[numbers[is_real]] = likeliest[is_real]
        return scores, is_greedy

    def _ready(self, params: Params, batch: Batch) -> Callable[[Params, Batch], Scores]:
        if self._compiled is None:
            self._compiled = executables.compiled(self._score, params, batch)
            initialize.wait_for_compilers("first task", self._deadlines)
        return self._compiled

    def _scores(self, params: Params, batch: Batch) -> Scores:
        """Returns the scores of a batch, each (M, B)."""

        def score(_: None, micro: Batch) -> tuple[None, Scores]:
            found = likelihoods_by_row(self._network.bind(params), micro)
            return None, (micro.examples, *found)

        if batch.tokens.shape[0] == 1:
            of_one = score(None, jax.tree.map(lambda x: x[0], batch))[1]
            return jax.tree.map(lambda x: x[None], of_one)
        return jax.lax.scan(score, None, batch)[1]


def measured(task: Task, scores: np.ndarray, is_greedy: np.ndarray) -> dict[str, float]:
    """Returns the metrics of a task, as https://github.com/EleutherAI/lm-evaluation-harness does.

    `scores` are the log-likelihoods of the first item's requests, then of the second's, in nats.
    The first of equal scores wins.
    """
    if not task.items[0].choices:
        found = {"acc": float(is_greedy.mean()), "perplexity": _perplexity(scores)}
    else:
        found = {
            "acc": _accuracy(task.items, scores),
            "acc_norm": _accuracy(task.items, scores / _lengths(task.items)),
        }
    return {metric: found[metric] for metric in task.metrics}


def _perplexity(scores: np.ndarray) -> float:
    """Returns the perplexity per text, not per token."""
    return math.exp(min(-scores.mean(dtype=np.float64), LARGEST_EXPONENT))


def _lengths(items: Sequence[Item]) -> np.ndarray:
    """Returns the number of characters of each choice."""
    return np.array([len(choice) for item in items for choice in item.choices])


def _accuracy(items: Sequence[Item], scores: np.ndarray) -> float:
    """Returns the share of items whose choice with the largest score is right."""
    ends = np.cumsum([len(item.choices) for item in items])
    found = [np.argmax(of_item) for of_item in np.split(scores, ends[:-1])]
    right = [one in item.answers for one, item in zip(found, items, strict=True)]
    return sum(right) / len(right)


def _check_all_alike(tasks: EvalTasks) -> None:
    digests: Mapping[str, str] = {
        task.key: digest for task, digest in zip(tasks.tasks, tasks.digests, strict=True)
    }
    sent = json.dumps(digests) if jax.process_index() == 0 else None
    expected = json.loads(consensus.broadcast("tasks", sent))
    differing = [key for key in digests if digests[key] != expected.get(key)]
    error = None
    if differing:
        error = DataError(f"{', '.join(differing)}: not the content that host-0000 has")
    consensus.agree("tasks alike", error, [DataError])
