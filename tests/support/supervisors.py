"""Supervisors of runs on four hosts, and the ends of their attempts."""

from dataclasses import replace

from launcher.controller.supervisor import (
    Decision,
    Policy,
    RunEnded,
    StartAttempt,
    Supervisor,
    Wait,
)
from launcher.core.results import AttemptResult
from launcher.core.states import EndReason

FIXED = Policy(failures=3, preemptions=None, sizes=[4], wait_for_hosts_s=100.0)
ELASTIC = replace(FIXED, sizes=[2, 4])
CRASH = AttemptResult(EndReason.CRASH, "host-0001 exited with code 1", "exited with code 1", 1, 7)
LOSS = AttemptResult(EndReason.LOST, "host-0001 was lost", "lost", 1, 7)
STOP = AttemptResult(
    EndReason.PREEMPTED, "host-0001 exited with code 75", "exited with code 75", 1, 7
)
RESIZED = AttemptResult(EndReason.RESIZED, "stopped to go on with more hosts")


def crash(step: int) -> AttemptResult:
    return replace(CRASH, step=step)


def supervisor(policy: Policy = FIXED) -> Supervisor:
    """With a first attempt that runs on all hosts."""
    started = Supervisor(policy)
    started.began(policy.sizes[-1])
    return started


def end(run: Supervisor, ending: AttemptResult, now_s: float = 0.0, alive: int = 4) -> Decision:
    run.ended(ending, now_s)
    return run.decide(alive, now_s)


def restart(run: Supervisor, ending: AttemptResult) -> float:
    """End the attempt and begin the next one as soon as that may be; the back-off in seconds."""
    decision = end(run, ending)
    back_off_s = decision.until_s if isinstance(decision, Wait) else 0.0
    assert run.decide(4, back_off_s) == StartAttempt(4)
    run.began(4)
    return back_off_s


def over(decision: Decision) -> RunEnded:
    assert isinstance(decision, RunEnded)
    return decision
