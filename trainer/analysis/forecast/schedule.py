"""Follows the schedule of a compiled step: its time on the devices, and the parts of that time.

The instructions of a scheduled program are in the order in which the core runs them. An instruction
with a start and an end lets the core go on in between; at the end the core waits for the rest.
"""

from collections.abc import Callable, Container

from trainer.analysis.collectives import ENDED, OVERLAPPING, STARTED
from trainer.analysis.forecast.timeline import Cost, Timeline, longest
from trainer.analysis.hlo import Computation, Instruction, Program
from trainer.contract.protocol.reports import StepSchedule

CostOf = Callable[[str, Instruction], Cost | None]
"""Returns the cost of an instruction of a named computation; None when it takes no time."""
STARTS = ("-start", "send", "recv")
ENDS = ("-done",)
SIMULATED = 2
"""Iterations of a loop that are followed: in the first one all resources may be free, the second
one is like all others."""


def follow(program: Program, cost_of: CostOf) -> StepSchedule:
    """Returns the time of a program that runs once.

    Raises ValueError when a loop is not a counting loop.
    """
    walk = _Walk(program, cost_of)
    walk.computation(program.entry)
    line = walk.timeline
    return StepSchedule(
        line.now_s, {k: v for k, v in line.parts.items() if v}, dict(sorted(line.busy.items()))
    )


class _Walk:
    """Follows computations, with all collectives and copies that are under way."""

    def __init__(self, program: Program, cost_of: CostOf):
        self.timeline = Timeline()
        self._program = program
        self._cost_of = cost_of

    def computation(self, name: str) -> None:
        """Follows the instructions of a computation."""
        within = self._program.computations[name]
        under_way: dict[str, tuple[float, str]] = {}
        for one in within.values():
            self._instruction(name, within, one, under_way)

    def _instruction(
        self,
        name: str,
        within: Computation,
        one: Instruction,
        under_way: dict[str, tuple[float, str]],
    ) -> None:
        if one.opcode == "while":
            self._loop(one, within)
        elif one.opcode == "conditional":
            self._branches(one.called)
        elif one.opcode == "call":
            self.computation(one.called[0])
        elif _ends(one):
            if started := _started(within, one, under_way):
                self.timeline.wait(*under_way.pop(started))
        elif cost := self._cost_of(name, one):
            if _starts(one):
                under_way[one.name] = self.timeline.start(cost), cost.part
            else:
                self.timeline.run(cost)

    def _loop(self, loop: Instruction, around: Computation) -> None:
        """Follows the first iterations; all others are like the last of these."""
        trips = self._program.trips(loop, around)
        body = self._program.body(loop)
        before = self.timeline.copy()
        for _ in range(min(trips, SIMULATED)):
            before = self.timeline.copy()
            self.computation(body)
        self.timeline.repeat(before, max(0, trips - SIMULATED))

    def _branches(self, names: list[str]) -> None:
        """Follows every branch of a conditional; the longest one counts."""
        before, ends = self.timeline, list[Timeline]()
        for name in names:
            self.timeline = before.copy()
            self.computation(name)
            ends.append(self.timeline)
        self.timeline = longest(ends)


def _starts(one: Instruction) -> bool:
    return one.opcode.endswith(STARTS) or one.name.startswith(STARTED)


def _ends(one: Instruction) -> bool:
    return one.opcode.endswith(ENDS) or one.name.startswith(ENDED)


def _started(within: Computation, end: Instruction, under_way: Container[str]) -> str | None:
    """Returns the name of the start that an end belongs to; None when it is not under way.

    Between them are updates, elements of tuples, and work that is fused with parts of a collective.
    """
    edge = list(end.operands)
    seen: set[str] = set()
    while edge:
        name = edge.pop()
        if name in under_way:
            return name
        one = within.get(name)
        if one and name not in seen and _passes_on(one):
            edge += one.operands
        seen.add(name)
    return None


def _passes_on(one: Instruction) -> bool:
    is_piece = any(name.startswith(OVERLAPPING) for name in one.called)
    return is_piece or one.opcode in ("get-tuple-element", "async-update", "bitcast", "tuple")
