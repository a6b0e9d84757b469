"""On CPU devices no collective can overtake those of a loop, on one device and not on another.

Read from the compiled program: of a collective and a loop that holds collectives, in the same
computation, one must need the result of the other.
"""

import pytest

from tests.support.harness import Bench, bench
from tests.support.jobs import job_of, world_of
from tests.support.sampling import sampled
from trainer.analysis.collectives import KINDS
from trainer.analysis.hlo import Computation, Program
from trainer.step import loss

JOBS = {
    "fsdp": job_of(),
    "tensor 2": job_of(mesh={"tensor": 2}),
    "data 2": job_of(mesh={"data": 2}),
    "untied": job_of(model={"tied_embeddings": False}),
    "dropout": job_of(model={"dropout": 0.1}, mesh={"tensor": 2}),
    "rematerialized": job_of(model={"remat": "full"}),
    "micro-batches": job_of(data={"grad_accum_steps": 2}, mesh={"tensor": 2}),
    "micro-batches, data 2": job_of(data={"grad_accum_steps": 2}, mesh={"data": 2, "tensor": 2}),
}
ALWAYS = ("tensor 2", "untied", "rematerialized", "micro-batches, data 2")


def holds_collectives(program: Program, computation: str) -> bool:
    return any(
        one.opcode in KINDS or any(holds_collectives(program, called) for called in one.called)
        for one in program.computations[computation].values()
    )


def overtaking(program: Program) -> list[tuple[str, str]]:
    """(collective, loop) of every pair of which neither needs the other."""
    return [
        (collective, loop)
        for instructions in program.computations.values()
        for loop, one in instructions.items()
        if one.opcode == "while" and any(holds_collectives(program, c) for c in one.called)
        for collective, other in instructions.items()
        if other.opcode in KINDS
        and collective not in _needed(instructions, loop)
        and loop not in _needed(instructions, collective)
    ]


def _needed(instructions: Computation, last: str) -> set[str]:
    """Every instruction of the same computation that `last` comes after."""
    seen, queue = set(), [last]
    while queue:
        one = instructions[queue.pop()]
        for name in one.operands:
            if name in instructions and name not in seen:
                seen.add(name)
                queue.append(name)
    return seen


@pytest.mark.parametrize("job", sampled(JOBS, ALWAYS))
def test_no_collective_can_overtake_a_loop(job):
    program = Program(bench(job, 4).text)
    assert any(holds_collectives(program, name) for name in program.computations)
    assert overtaking(program) == []


def test_nor_those_of_a_loss_in_chunks(monkeypatch):
    monkeypatch.setattr(loss, "LOGIT_BYTES", 2**14)
    job = job_of(mesh={"tensor": 2})
    whole, chunked = bench(job, 4).text, Bench.of(job, world_of(1, 4)).text
    assert whole != chunked
    assert overtaking(Program(chunked)) == []
