"""From what the hosts reported to what the supervisor must know: why did the attempt end? Pure."""

import signal
from collections.abc import Mapping

from launcher.core.formatting import describe_status
from launcher.core.results import (
    EXIT_STOPPED_ON_REQUEST,
    STALE,
    AttemptResult,
    EndReason,
    GangResult,
    Hang,
    ProcessExit,
    describe_exit,
)

FINAL_CODES = (64, 65)
WHY = {
    EndReason.RESIZED: "stopped to go on with more hosts",
    EndReason.PREEMPTED: "stopped because a host is about to be taken away",
}
BY_SIGTERM = int(signal.SIGTERM)
AGENT_FAILED = "its agent failed"


def classify(
    outcome: GangResult, asked: EndReason | None, steps: Mapping[int, int]
) -> AttemptResult:
    """The end of an attempt; `steps`: the last that each host completed, of those that told.

    `asked`: STOPPED, RESIZED or PREEMPTED where the hosts were asked to stop; None: nobody here
    did that.
    """
    furthest = max(steps.values(), default=None)
    if hang := outcome.hang:
        return _hung(hang, steps.get(hang.behind[0].process, furthest))
    if outcome.ok:
        return AttemptResult(EndReason.FINISHED, outcome.reason, step=furthest)
    if stale := _saying(outcome, STALE):
        reason = "another attempt of this run has taken over its checkpoints"
        return AttemptResult(EndReason.FINAL, reason, STALE, stale[0], furthest)
    failed = outcome.failed_process
    if failed is None:
        return _stopped(outcome, asked, steps)
    # Its own, for others may get a step further before they miss it, or not.
    return _failed(failed, outcome.exits[failed], asked, steps.get(failed, furthest))


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
    stopped = [p for p, ended in outcome.exits.items() if ended.code == EXIT_STOPPED_ON_REQUEST]
    first = min(stopped, key=lambda process: (outcome.exits[process].ended_at, process))
    step = steps.get(first, furthest)
    return _unexplained(first, outcome.exits[first], step)


def _failed(
    process: int, ended: ProcessExit, asked: EndReason | None, step: int | None
) -> AttemptResult:
    reason = describe_exit(process, ended)
    # A run that is stopped ends all the same, whether a host is lost then or its agent alone.
    if ended.status is None and (asked is EndReason.STOPPED or not ended.host_lives):
        return AttemptResult(EndReason.LOST, reason, "lost", process, step)
    how = AGENT_FAILED if ended.status is None else describe_status(ended.status)
    if asked is EndReason.STOPPED or ended.code in FINAL_CODES:
        return AttemptResult(EndReason.FINAL, reason, how, process, step)
    if ended.status != BY_SIGTERM:
        return AttemptResult(EndReason.CRASH, reason, how, process, step)
    if asked is EndReason.PREEMPTED:
        return AttemptResult(EndReason.PREEMPTED, reason, process=process, step=step)
    return _unexplained(process, ended, step)


def _unexplained(process: int, ended: ProcessExit, step: int | None) -> AttemptResult:
    """A stop that the platform may have asked for, or that the program only looks like."""
    reason = f"{describe_exit(process, ended)}; this launch did not ask for that"
    assert ended.status is not None
    return AttemptResult(EndReason.PREEMPTED, reason, describe_status(ended.status), process, step)


def _saying(outcome: GangResult, word: str) -> list[int]:
    return [process for process, ended in outcome.exits.items() if ended.said == word]
