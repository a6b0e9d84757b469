"""Classifies the end of an attempt for the supervisor, from what the hosts reported. Pure."""

import signal
from collections.abc import Mapping

from launcher.core.formatting import describe_status
from launcher.core.results import AttemptResult, GangResult, Hang
from launcher.core.states import EndReason
from trainer.contract.protocol.events import REWOUND, STALE, WRONG_HOST
from trainer.contract.protocol.exit_codes import FINAL, ProgramExit
from trainer.contract.protocol.process_names import process_name

WHY = {
    EndReason.RESIZED: "stopped to go on with more hosts",
    EndReason.SHRUNK: "stopped to go on with fewer hosts, because the queue needs some",
    EndReason.BUDGET: "stopped because the budget is used up",
    EndReason.PREEMPTED: "stopped because a host is about to be taken away",
}
BY_SIGTERM = int(signal.SIGTERM)
BACK = "a spike: back to the newest checkpoint, without the examples of the step"
AGENT_FAILED = "its agent failed"
FOR_GOOD = (EndReason.STOPPED, EndReason.BUDGET)
"""Reasons of this launcher to stop after which no other attempt follows."""


def classify(
    outcome: GangResult, asked: EndReason | None, steps: Mapping[int, int]
) -> AttemptResult:
    """Returns the result of an attempt.

    `asked`: STOPPED, BUDGET, RESIZED, SHRUNK or PREEMPTED when this launcher asked the hosts to
    stop, else None.
    `steps`: the last completed step of each host that reported one.
    """
    furthest = max(steps.values(), default=None)
    if hang := outcome.hang:
        return _hung(hang, steps.get(hang.behind[0].process, furthest))
    if outcome.ok:
        return AttemptResult(EndReason.FINISHED, outcome.reason, step=furthest)
    if stale := _processes_that_reported(outcome, STALE):
        reason = "another attempt of this run has taken over its checkpoints"
        return AttemptResult(EndReason.FINAL, reason, STALE, stale[0], furthest)
    failed = outcome.failed_process
    if failed is None:
        return _stopped(outcome, asked, steps)
    # The failed host's own step: other hosts may complete another one before they notice the loss.
    return _failed(outcome, failed, asked, steps.get(failed, furthest))


def _hung(hang: Hang, step: int | None) -> AttemptResult:
    first = hang.behind[0]
    return AttemptResult(EndReason.HANG, str(hang), f"hang in {first.phase}", first.process, step)


def _stopped(
    outcome: GangResult, asked: EndReason | None, steps: Mapping[int, int]
) -> AttemptResult:
    furthest = max(steps.values(), default=None)
    if asked is not None:
        return AttemptResult(
            asked, outcome.cut_off or WHY.get(asked, outcome.reason), step=furthest
        )
    if wrong := wrong_hosts(outcome):
        names = ", ".join(process_name(one, outcome.processes_per_host) for one in wrong)
        reason = f"{names} computed wrong: back to the last good state, on other hosts"
        return AttemptResult(EndReason.WRONG_HOST, reason, process=wrong[0], step=furthest)
    if rewound := _processes_that_reported(outcome, REWOUND):
        return AttemptResult(EndReason.REWOUND, BACK, process=rewound[0], step=furthest)
    stopped = [p for p, ended in outcome.exits.items() if ended.code == ProgramExit.STOPPED]
    first = min(stopped, key=lambda process: (outcome.exits[process].ended_at, process))
    step = steps.get(first, furthest)
    return _unexplained(outcome, first, step)


def _failed(
    outcome: GangResult, process: int, asked: EndReason | None, step: int | None
) -> AttemptResult:
    ended, reason = outcome.exits[process], outcome.describe_exit(process)
    # A run that is being stopped ends either way, whether a host is lost or only its agent.
    if ended.status is None and (asked in FOR_GOOD or not ended.host_lives):
        return AttemptResult(EndReason.LOST, reason, "lost", process, step)
    how = AGENT_FAILED if ended.status is None else describe_status(ended.status)
    if asked in FOR_GOOD or ended.code in FINAL:
        return AttemptResult(EndReason.FINAL, reason, how, process, step)
    if ended.status != BY_SIGTERM:
        return AttemptResult(EndReason.CRASH, reason, how, process, step)
    if asked is EndReason.PREEMPTED:
        return AttemptResult(EndReason.PREEMPTED, reason, process=process, step=step)
    return _unexplained(outcome, process, step)


def _unexplained(outcome: GangResult, process: int, step: int | None) -> AttemptResult:
    """Classifies a stop that this launcher did not request as a preemption.

    The platform may have requested it, or the program's exit only looks like a stop.
    """
    reason = f"{outcome.describe_exit(process)}; this launch did not ask for that"
    status = outcome.exits[process].status
    assert status is not None
    return AttemptResult(EndReason.PREEMPTED, reason, describe_status(status), process, step)


def wrong_hosts(outcome: GangResult) -> list[int]:
    """Returns the processes whose hosts computed other numbers than the rest."""
    return _processes_that_reported(outcome, WRONG_HOST)


def _processes_that_reported(outcome: GangResult, category: str) -> list[int]:
    return [process for process, ended in outcome.exits.items() if ended.final_report == category]
