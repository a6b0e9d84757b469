"""Asks the TPU compiler about the step of a launch, or about its likely best alternatives."""

import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from launcher.core.memory import available_bytes
from launcher.planning.planner import TrainingLaunch
from launcher.planning.spec import LaunchSpec
from launcher.planning.trainer_process import POLL_S, TrainerProcess, TrainerProcessError
from trainer.contract.estimates.search import Candidate, Ranking
from trainer.contract.planning.accelerators import lacks_compiler

TIMEOUT_S = 1800.0


def compilation(launch: LaunchSpec, timeout_s: float = TIMEOUT_S) -> TrainerProcess:
    """The TPU compiler at work on the launch's step.

    It answers with the fields of `trainer.analysis.compile_report.CompileReport`.

    Raises TrainerProcessError where there is no compiler for it.
    """
    training = of_training(launch)
    if lack := lacks_compiler(training.plan.world):
        raise TrainerProcessError(lack)
    return TrainerProcess("trainer.analysis.compile_report", training.job, training.plan, timeout_s)


def of_training(launch: LaunchSpec) -> TrainingLaunch:
    """A launch that the trainer can be asked about. Raises TrainerProcessError."""
    if not isinstance(launch, TrainingLaunch):
        raise TrainerProcessError("what a command runs is not known")
    return launch


WANTED = 3
"""Alternatives that fit; then nobody is asked any more."""
MOST = 8
"""Alternatives that the compiler is asked about."""
COMPILER_BYTES = 4 << 30
"""Of a process of it: 1.4 GiB where it compiles for 16 devices, and more for more."""


@dataclass(frozen=True)
class CompiledCandidate:
    """A candidate, and what the compiler said."""

    candidate: Candidate
    verdict: Mapping[str, Any] | None = None
    """The fields of trainer.analysis.compile_report.CompileReport; None: not asked, or failed."""
    failure: str = ""

    @property
    def fits(self) -> bool | None:
        """None: the compiler has not said."""
        return self.verdict["fits"] if self.verdict else None


def ask_about_the_best(
    launch: TrainingLaunch, ranking: Ranking, on_finding: Callable[[], None]
) -> list[CompiledCandidate]:
    """Down the ranking until enough fit. Raises TrainerProcessError where there is no compiler.

    All processes have ended afterwards, whatever happens.
    """
    waiting = deque([*ranking.fitting, *ranking.doubtful])
    findings: list[CompiledCandidate] = []
    running: dict[TrainerProcess, Candidate] = {}
    slots = at_once()
    with ExitStack() as calls:
        while True:
            while len(running) < slots and (one := next_to_ask(waiting, findings, len(running))):
                asked = replace(launch, job=one.alternative.job, plan=one.alternative.plan)
                running[calls.enter_context(compilation(asked))] = one
            if not running:
                return findings
            time.sleep(POLL_S)
            for call in [one for one in running if one.is_over]:
                findings.append(_finding(running.pop(call), call))
                on_finding()


def at_once() -> int:
    """How many processes this machine's cores and memory have room for, at least one."""
    room = available_bytes() // COMPILER_BYTES
    return max(1, min(len(os.sched_getaffinity(0)), room))


def next_to_ask(
    waiting: deque[Candidate], findings: list[CompiledCandidate], running: int
) -> Candidate | None:
    """The next that is worth asking about; None: there is none, or enough fit.

    What is estimated to need more than one that did not fit is passed over.
    """
    enough = sum(one.fits is True for one in findings) + running >= WANTED
    if enough or len(findings) + running >= MOST:
        return None
    refused = (one.candidate.footprint.total for one in findings if one.fits is False)
    limit = min(refused, default=math.inf)
    while waiting:
        if (one := waiting.popleft()).footprint.total < limit:
            return one
    return None


def _finding(candidate: Candidate, call: TrainerProcess) -> CompiledCandidate:
    try:
        return CompiledCandidate(candidate, call.answer())
    except TrainerProcessError as error:
        return CompiledCandidate(candidate, failure=str(error))
