"""The examples before a record of a task: those that lm-evaluation-harness chooses."""

from collections.abc import Iterator, Sequence
from itertools import islice
from random import Random

from trainer.contract.config.loader import Loaded
from trainer.contract.config.task_file import TaskFile
from trainer.contract.storage.corpus import DataError
from trainer.data.readers import Record

SEED = 1234
"""The harness's own: `fewshot_random_seed` of `simple_evaluate`."""


class FewShot:
    """Chooses examples. All records must come in their order, since one generator draws for all.

    References:
        lm_eval/api/samplers.py of https://github.com/EleutherAI/lm-evaluation-harness
    """

    def __init__(self, task: Loaded[TaskFile], pool: Sequence[Record]) -> None:
        self._task, self._number = task, task.value.num_fewshot or 0
        self._pool, self._random = pool, Random(SEED)

    def before(self, record: Record) -> Sequence[Record]:
        """Returns the examples of a record. Raises DataError when there are too few."""
        number = self._number
        if not number:
            return []
        if self._task.value.fewshot_config.sampler == "first_n":
            return self._checked(list(islice(self._others(record), number)), number)
        if not self._task.value.leaves_out_record:
            return self._drawn(self._pool, number)
        # One more is drawn, in case the record is among them; copies of it may be, too.
        found = [one for one in self._drawn(self._pool, number + 1) if one != record]
        if len(found) < number:
            return self._drawn(list(self._others(record)), number)
        return found[:number]

    def _others(self, record: Record) -> Iterator[Record]:
        leaves_out = self._task.value.leaves_out_record
        return (one for one in self._pool if not (leaves_out and one == record))

    def _drawn(self, pool: Sequence[Record], number: int) -> Sequence[Record]:
        return self._random.sample(self._checked(pool, number), number)

    def _checked(self, pool: Sequence[Record], number: int) -> Sequence[Record]:
        if number > len(pool):
            message = f"needs {number} records of the split, found {len(pool)}"
            raise DataError(str(self._task.problem("num_fewshot", message)))
        return pool
