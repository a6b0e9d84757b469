"""How long a process waits for the others: as long as `deadlines` of the job says."""

from pathlib import Path

import jax
import pytest
from jax._src import distributed as jax_distributed

from tests.support.harness import bench
from tests.support.jobs import job_of
from tests.support.saves import Kept, Said
from trainer import train
from trainer.checkpoint.weights import initial
from trainer.contract.config.eval import Sample
from trainer.contract.config.job import Deadlines
from trainer.data import token_cache
from trainer.distributed import consensus, initialize
from trainer.evaluation.evaluate import Evaluator
from trainer.evaluation.generate import Sampler
from trainer.programs.counts import Counts


class Coordinator:
    """The client of a coordinator, which keeps the limits of waits."""

    def __init__(self) -> None:
        self.waits: dict[str, int] = {}
        self.is_complete = True

    def wait_at_barrier(self, name: str, timeout_ms: int) -> None:
        self.waits[name] = timeout_ms
        if not self.is_complete:
            raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: task 1 is absent")


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    coordinator = Coordinator()
    monkeypatch.setattr(jax_distributed.global_state, "client", coordinator)
    return coordinator


def test_compilers_are_waited_for_as_long_as_the_job_says(
    tmp_path: Path, coordinator: Coordinator
) -> None:
    job = job_of(deadlines={"compile_s": 77.0})
    made, said = bench(job), Said(job, tmp_path)
    params = made.initial().params
    train._compiled(made.program, made.loader, said.events, said, Counts(), {})
    Evaluator(made.program).evaluate(params, [made.batch(1)])
    Sampler(made.program, Sample(tokens=2), token_cache.load(job.data).tokenizer).sample(params)
    assert coordinator.waits == dict.fromkeys(
        ["first step", "first evaluation", "sample 1"], 77_000
    )


def test_a_compiler_that_takes_too_long_is_named_with_the_key_of_the_limit(
    coordinator: Coordinator,
) -> None:
    coordinator.is_complete = False
    said = r"reached 'first step' within 77 s \(deadlines\.compile_s\): .*task 1 is absent"
    with pytest.raises(TimeoutError, match=said):
        initialize.wait_for_compilers("first step", Deadlines(compile_s=77))


def test_a_restore_waits_for_the_others_as_long_as_the_job_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept.of(tmp_path, deadlines={"restore_s": 77.0})
    kept.saved(1)
    limits, agree, broadcast = set(), consensus.agree, consensus.broadcast
    monkeypatch.setattr(consensus, "agree", lambda *a: (limits.add(a[3]), agree(*a))[1])
    monkeypatch.setattr(consensus, "broadcast", lambda *a: (limits.add(a[2]), broadcast(*a))[1])
    assert kept.restore()
    initial(str(kept.folder / "1"), kept.made.program)
    assert limits == {77.0}
