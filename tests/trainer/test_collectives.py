"""On CPU devices no collective can overtake those of a loop, on one device and not on another.

Read from the compiled program: of a collective and a loop that holds collectives, in the same
computation, one must need the result of the other.
"""

import re
from collections import defaultdict

import pytest

from tests.trainer.harness import Bench, bench
from tests.trainer.jobs import job_of, world_of
from trainer import loss

NAMES = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
COLLECTIVE = re.compile(rf" ({NAMES})\(")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%(\S+) = (.*)$")
HEADER = re.compile(r"^(?:ENTRY )?%(\S+) \(.*\{$")
NAME = re.compile(r"%([\w.-]+)")
JOBS = {
    "fsdp": job_of(),
    "tensor 2": job_of(mesh={"tensor": 2}),
    "data 2": job_of(mesh={"data": 2}),
    "untied": job_of(model={"tied_embeddings": False}),
    "dropout": job_of(model={"dropout": 0.1}, mesh={"tensor": 2}),
    "rematerialized": job_of(model={"remat": "full"}),
    "micro-batches": job_of(data={"micro_batches": 2}, mesh={"tensor": 2}),
    "micro-batches, data 2": job_of(data={"micro_batches": 2}, mesh={"data": 2, "tensor": 2}),
}


class Program:
    """The computations of HLO text: each instruction's line, by name."""

    def __init__(self, text: str):
        self.computations: dict[str, dict[str, str]] = defaultdict(dict)
        current = ""
        for line in text.splitlines():
            if header := HEADER.match(line):
                current = header[1]
            elif instruction := INSTRUCTION.match(line):
                self.computations[current][instruction[1]] = instruction[2].split(", metadata=")[0]

    def holds_collectives(self, computation: str) -> bool:
        return any(
            COLLECTIVE.search(line) or any(self.holds_collectives(c) for c in self._called(line))
            for line in self.computations[computation].values()
        )

    def _called(self, line: str) -> list[str]:
        return [name for name in NAME.findall(line) if name in self.computations]

    def overtaking(self) -> list[tuple[str, str]]:
        """(collective, loop) of every pair of which neither needs the other."""
        return [
            (collective, loop)
            for instructions in self.computations.values()
            for loop, line in instructions.items()
            if " while(" in line and any(map(self.holds_collectives, self._called(line)))
            for collective, other in instructions.items()
            if COLLECTIVE.search(other)
            and collective not in _needed(instructions, loop)
            and loop not in _needed(instructions, collective)
        ]


def _needed(instructions: dict[str, str], last: str) -> set[str]:
    """Every instruction of the same computation that `last` comes after."""
    seen, queue = set(), [last]
    while queue:
        for name in NAME.findall(instructions[queue.pop()]):
            if name in instructions and name not in seen:
                seen.add(name)
                queue.append(name)
    return seen


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_no_collective_can_overtake_a_loop(job):
    program = Program(bench(job, 4).text)
    assert any(map(program.holds_collectives, list(program.computations)))
    assert program.overtaking() == []


def test_nor_those_of_a_loss_in_chunks(monkeypatch):
    monkeypatch.setattr(loss, "LOGIT_BYTES", 2**14)
    job = job_of(mesh={"tensor": 2})
    whole, chunked = bench(job, 4).text, Bench.of(job, world_of(1, 4)).text
    assert whole != chunked
    assert Program(chunked).overtaking() == []
