"""Queries the TPU compiler about the step of a launch, or about its likely best alternatives."""

import math
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace

from launcher.core.memory import available_bytes
from launcher.core.wait import wait_until
from launcher.planning.planner import TrainingLaunch
from launcher.planning.spec import LaunchSpec
from launcher.planning.trainer_process import POLL_INTERVAL_S, TrainerProcess, TrainerProcessError
from trainer.contract.estimates.forecast import StepForecast, of_schedule
from trainer.contract.estimates.search import Candidate, Ranking
from trainer.contract.planning.accelerators import lacks_compiler
from trainer.contract.protocol.reports import CompileReport

TIMEOUT_S = 1800.0


def compilation(launch: LaunchSpec, timeout_s: float = TIMEOUT_S) -> TrainerProcess:
    """Starts the TPU compiler on the launch's step, for at most `timeout_s` seconds.

    The result is a CompileReport. Raises TrainerProcessError when this machine has no compiler for
    the accelerator.
    """
    training = of_training(launch)
    if lack := lacks_compiler(training.plan.world):
        raise TrainerProcessError(lack)
    return TrainerProcess("trainer.analysis.compile_report", training.job, training.plan, timeout_s)


def preliminary(call: TrainerProcess) -> CompileReport | None:
    """Waits until the memory of a step is known, which is long before its code is compiled.

    Returns None when the compiler has ended, or finds that the step does not fit.
    """
    newest: list[CompileReport] = []

    def is_known() -> bool:
        newest.extend(filter(None, [call.preliminary(CompileReport)]))
        return bool(newest) or call.is_over

    wait_until(is_known, poll_interval_s=POLL_INTERVAL_S)
    return next((one for one in newest if one.is_preliminary), None)


def of_training(launch: LaunchSpec) -> TrainingLaunch:
    """Returns a launch that the trainer can analyze. Raises TrainerProcessError for a command."""
    if not isinstance(launch, TrainingLaunch):
        raise TrainerProcessError("a job with a `command` cannot be analyzed")
    return launch


WANTED = 3
"""Number of alternatives that fit after which no more are compiled."""
MOST = 8
"""Maximum number of alternatives to compile."""
COMPILER_BYTES = 4 << 30
"""Bytes of memory per compiler process: 16 devices need 1.4 GiB, more devices need more."""


@dataclass(frozen=True)
class CompiledCandidate:
    """A candidate and its result from the compiler."""

    candidate: Candidate
    verdict: CompileReport | None = None
    """None when it was not compiled, or the compiler failed."""
    failure: str = ""

    @property
    def forecast(self) -> StepForecast:
        """The forecast by the compiled schedule, or else by the calibrated estimate."""
        schedule = self.verdict and self.verdict.schedule
        world = self.candidate.alternative.plan.world
        return of_schedule(schedule, world) if schedule else self.candidate.forecast

    @property
    def fits(self) -> bool | None:
        """Whether the candidate fits; None without a result."""
        return self.verdict.fits if self.verdict else None


def compile_candidates(
    launch: TrainingLaunch, ranking: Ranking, on_finding: Callable[[], None]
) -> list[CompiledCandidate]:
    """Compiles candidates in the order of the ranking until enough of them fit.

    Raises TrainerProcessError when there is no compiler. All compiler processes have ended
    afterwards, also after an error.
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
            time.sleep(POLL_INTERVAL_S)
            for call in [one for one in running if one.is_over]:
                findings.append(_finding(running.pop(call), call))
                on_finding()


def at_once() -> int:
    """Returns how many compiler processes fit this machine's cores and memory, at least one."""
    fitting = available_bytes() // COMPILER_BYTES
    return max(1, min(len(os.sched_getaffinity(0)), fitting))


def next_to_ask(
    waiting: deque[Candidate], findings: list[CompiledCandidate], running: int
) -> Candidate | None:
    """Returns the next candidate worth compiling; None when there is none, or enough fit.

    Skips candidates with an estimate of at least the memory of one that did not fit.
    """
    enough = sum(one.fits is True for one in findings) + running >= WANTED
    if enough or len(findings) + running >= MOST:
        return None
    too_large = (one.candidate.footprint.total for one in findings if one.fits is False)
    limit = min(too_large, default=math.inf)
    while waiting:
        if (one := waiting.popleft()).footprint.total < limit:
            return one
    return None


def _finding(candidate: Candidate, call: TrainerProcess) -> CompiledCandidate:
    try:
        return CompiledCandidate(candidate, call.answer(CompileReport))
    except TrainerProcessError as error:
        return CompiledCandidate(candidate, failure=str(error))
