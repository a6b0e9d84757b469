"""Multiple choice by likelihood: the answer is the choice that the model finds likeliest.

The letters of dims are those of trainer/model/__init__.py.
"""

from collections.abc import Callable, Sequence

import jax
import numpy as np

from trainer.contract.storage.corpus import DataError
from trainer.data.loader import BatchLoader, batch_shardings
from trainer.data.packing import Batch
from trainer.data.questions import Question, Questions
from trainer.distributed import consensus, initialize
from trainer.distributed import mesh as meshes
from trainer.model import Params
from trainer.programs import executables
from trainer.step.loss import losses_by_row
from trainer.step.train_step import TrainProgram
from trainer.telemetry.metrics import MultipleChoiceResult


class MultipleChoiceEvaluator:
    """Answers questions. Compiles once, at the first evaluation.

    Every process must make the same calls. Raises DataError when hosts have different questions.
    """

    def __init__(self, program: TrainProgram, questions: Questions) -> None:
        self._network, self._questions = program.network, questions
        self._deadlines = program.job.deadlines
        whole = meshes.replicated(program.mesh)
        places = (program.shardings.params, batch_shardings(program.mesh))
        self._score = jax.jit(self._scores, in_shardings=places, out_shardings=(whole, whole))
        self._compiled: Callable[[Params, Batch], tuple[jax.Array, jax.Array]] | None = None
        _check_all_alike(questions)

    def evaluate(self, params: Params, loader: BatchLoader) -> MultipleChoiceResult:
        scores = np.zeros(len(self._questions.examples), np.float32)
        for batch in loader.given(self._questions.examples):
            numbers, found = jax.device_get(self._ready(params, batch)(params, batch))
            is_real = numbers >= 0
            scores[numbers[is_real]] = found[is_real]
        return judged(self._questions.every, scores)

    def _ready(
        self, params: Params, batch: Batch
    ) -> Callable[[Params, Batch], tuple[jax.Array, jax.Array]]:
        if self._compiled is None:
            self._compiled = executables.compiled(self._score, params, batch)
            initialize.wait_for_compilers("first choice", self._deadlines)
        return self._compiled

    def _scores(self, params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Returns the example numbers and their log-likelihoods in nats, both (M, B)."""

        def score(_: None, micro: Batch) -> tuple[None, tuple[jax.Array, jax.Array]]:
            losses_B = losses_by_row(self._network.bind(params), micro)
            return None, (micro.examples, -losses_B)

        if batch.tokens.shape[0] == 1:
            found = score(None, jax.tree.map(lambda x: x[0], batch))[1]
            return found[0][None], found[1][None]
        return jax.lax.scan(score, None, batch)[1]


def judged(questions: Sequence[Question], scores: np.ndarray) -> MultipleChoiceResult:
    """Returns the accuracy by `scores`, and by scores divided by the choices' lengths.

    They are `acc` and `acc_norm` of https://github.com/EleutherAI/lm-evaluation-harness.
    `scores` has the first question's choices, then the second's. The first of equal scores wins.
    """
    right = np.zeros(2, int)
    first = 0
    for question in questions:
        of_it = scores[first : first + len(question.choices)]
        lengths = [len(choice) for choice in question.choices]
        chosen = np.array([np.argmax(of_it), np.argmax(of_it / lengths)])
        right, first = right + (chosen == question.answer), first + len(question.choices)
    accuracy, normalized = (right / len(questions)).tolist()
    return MultipleChoiceResult(accuracy, normalized)


def _check_all_alike(questions: Questions) -> None:
    digest = questions.sha256
    first = consensus.broadcast("questions", digest if jax.process_index() == 0 else None)
    error = None
    if digest != first:
        error = DataError("eval.multiple_choice.path: not the file that host-0000 has")
    consensus.agree("questions alike", error, [DataError])
