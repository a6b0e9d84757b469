"""A run's state machine: decides what follows the end of an attempt. Uses neither Ray nor a clock.

The caller reports events with their times, and requests the next decision. Every state has an
action, or a time at which it will have one: a run never waits forever.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from launcher.core.errors import docs_link
from launcher.core.results import AttemptResult
from launcher.core.states import EndReason, RunState

SAME_ENDS = 3
"""Identical ends of attempts in a row, after the same step, that count as deterministic."""
LOSSES_IN_VAIN = 20
"""Attempts that may lose a host, or stop for more or fewer hosts, without progress between them.

The back-off grows, so they take more than an hour. A run whose hosts are preempted faster than it
can save makes no progress however long it waits."""
ADVICE = "; a program that fails must end with another code than 75, and not by SIGTERM"
HELP = {
    EndReason.HANG: docs_link("hangs"),
    EndReason.LOST: docs_link("lost-hosts"),
    EndReason.PREEMPTED: docs_link("lost-hosts"),
}
PROGRAM_HELP, REPEATED_HELP = docs_link("a-program-failed"), docs_link("repeated-failure")
LONG_S = 3600.0
"""Seconds after which an attempt counts as progress when its program reports no steps."""
FIRST_BACK_OFF_S, LONGEST_BACK_OFF_S = 2.0, 300.0


@dataclass(frozen=True)
class Policy:
    """Limits on failures and lost hosts of a run."""

    failures: int
    """Maximum number of attempts that fail between two checkpoints."""
    preemptions: int | None
    """Maximum number of attempts that lose a host, in the whole run; None for no limit."""
    sizes: Sequence[int]
    """Numbers of hosts that the job fits on, ascending; the last one is the requested number."""
    wait_for_hosts_s: float
    """Seconds to wait for a lost host before resuming with fewer hosts, or giving up."""


@dataclass(frozen=True)
class StartAttempt:
    """Decision to start the next attempt, on `hosts` hosts."""

    hosts: int


@dataclass(frozen=True)
class KeepRunning:
    """Decision to do nothing: an attempt runs, and its end will be reported."""


@dataclass(frozen=True)
class Wait:
    """Decision to wait until `until_s`, unless hosts come earlier."""

    state: RunState
    """BACKING_OFF or WAITING_FOR_HOSTS."""
    until_s: float
    why: str


@dataclass(frozen=True)
class RunEnded:
    """The run has ended."""

    state: RunState
    """FINISHED, FAILED, STOPPED or OVER_BUDGET."""
    reason: str
    help: str = field(default="", compare=False)
    """A sentence that refers to the documentation; "" when no page covers this end."""


Decision = StartAttempt | KeepRunning | Wait | RunEnded


class Supervisor:
    """Decides for one run. `decide` returns what to do; the other methods report what happened.

    Times are seconds of any one clock.
    """

    def __init__(self, policy: Policy) -> None:
        self.failures = 0
        """Failures since the last checkpoint."""
        self.losses = 0
        self._policy = policy
        self._in_a_row = 0
        """Attempts that ended early since the last checkpoint."""
        self._committed = self._furthest = 0
        """Step of the newest checkpoint, and the last step that any attempt completed."""
        self._losses_in_vain = self._unexplained = self._same = 0
        """Counts since the last progress: a new checkpoint, or a step beyond all earlier ones."""
        self._last_end: tuple[str, int | None] = ("", None)
        self._running_on: int | None = None
        self._limit: int | None = None
        self._not_before_s = 0.0
        self._missed_at_s: float | None = None
        """Time since which no host has come; None when the run does not wait for hosts."""
        self._alive_before = 0
        """Hosts alive at the decision before."""
        self._settled_for: int | None = None
        """Hosts alive when that wait ended: with that many or more, the run resumes immediately."""
        self._why = ""
        self._over: RunEnded | None = None

    def began(self, hosts: int) -> None:
        """Records that an attempt has been started."""
        self._running_on, self._missed_at_s = hosts, None

    def committed(self, step: int) -> None:
        """Records a committed checkpoint: earlier failures no longer count."""
        if step > self._committed:
            self._committed, self.failures, self._in_a_row = step, 0, 0
            self._furthest = max(self._furthest, step)
            self._record_progress()

    def budget_spent(self, reason: str) -> None:
        """Records that the budget is used up: no other attempt starts."""
        self._over = self._over or RunEnded(RunState.OVER_BUDGET, reason)

    def limit(self, hosts: int | None) -> None:
        """Records the most hosts that the run may use; None for all of them.

        The run never gets less than the smallest number that the job fits on.
        """
        self._limit = hosts

    @property
    def most_hosts(self) -> int:
        """The number of hosts of the next attempt, if none is missing."""
        return self._sizes[-1]

    def wants_to_shrink(self) -> bool:
        """Returns whether the running attempt has more hosts than the run may use."""
        return self._running_on is not None and self._running_on > self.most_hosts

    def wants_to_grow(self, alive: int) -> bool:
        """Returns whether the running attempt should stop for one on more hosts."""
        size = self._largest(alive)
        return self._running_on is not None and size is not None and size > self._running_on

    def ended(self, ending: AttemptResult, now_s: float) -> None:
        """Records that the attempt is over, with all of its processes."""
        self._running_on, self._why = None, ending.reason
        if self._got_further(ending):
            self._record_progress()
        if ending.end_reason in (EndReason.FINISHED, EndReason.STOPPED):
            self._over = RunEnded(RunState(ending.end_reason), ending.reason)
        elif ending.end_reason is EndReason.FINAL:
            self._over = RunEnded(RunState.FAILED, ending.reason, PROGRAM_HELP)
        elif self._over:
            return
        elif ending.end_reason.is_restart:
            self._count_in_vain(ending)
        else:
            self._charge(ending)
            self._not_before_s = now_s + self._back_off_s()

    def decide(self, alive: int, now_s: float) -> Decision:
        """Returns what to do while `alive` hosts are alive."""
        if self._over or self._running_on is not None:
            return self._over or KeepRunning()
        if now_s < self._not_before_s:
            return Wait(RunState.BACKING_OFF, self._not_before_s, self._why)
        return self._start_or_wait(alive, now_s)

    def _start_or_wait(self, alive: int, now_s: float) -> Decision:
        wanted, size = self.most_hosts, self._largest(alive)
        if alive >= wanted:
            self._settled_for = None
            return StartAttempt(wanted)
        if size and self._settled_for is not None and alive >= self._settled_for:
            return StartAttempt(size)
        if self._missed_at_s is None or alive > self._alive_before:
            self._missed_at_s = now_s
        self._alive_before = alive
        until_s = self._missed_at_s + self._policy.wait_for_hosts_s
        if now_s < until_s:
            return Wait(RunState.WAITING_FOR_HOSTS, until_s, f"{alive} of {wanted} hosts are alive")
        if size:
            self._settled_for = alive
            return StartAttempt(size)
        self._over = RunEnded(
            RunState.FAILED,
            f"{alive} of {wanted} hosts are alive, at least {self._policy.sizes[0]} are needed, "
            f"and none has come in {now_s - self._missed_at_s:.0f} s. Before that: {self._why}",
            HELP[EndReason.LOST],
        )
        return self._over

    @property
    def _sizes(self) -> Sequence[int]:
        """Numbers of hosts that the next attempt may have, ascending."""
        sizes, limit = self._policy.sizes, self._limit
        return sizes if limit is None else [n for n in sizes if n <= limit] or sizes[:1]

    def _largest(self, alive: int) -> int | None:
        return max((size for size in self._sizes if size <= alive), default=None)

    def _charge(self, ending: AttemptResult) -> None:
        """Charges the budget for this kind of end. The run is over when the budget is spent."""
        self._in_a_row += 1
        if ending.end_reason is not EndReason.LOST and ending.how:
            self._count_repeats(ending)
        self._unexplained += ending.is_unexplained
        if ending.end_reason.is_loss and not (ending.is_unexplained and self._unexplained > 1):
            self._charge_preemptions(ending)
        else:
            self._charge_failures(ending)

    def _got_further(self, ending: AttemptResult) -> bool:
        if ending.step is None:
            return ending.ran_s >= LONG_S
        is_further = ending.step > self._furthest
        self._furthest = max(self._furthest, ending.step)
        return is_further

    def _record_progress(self) -> None:
        self._losses_in_vain = self._unexplained = self._same = 0

    def _count_repeats(self, ending: AttemptResult) -> None:
        end = (ending.how, ending.step)
        self._same = self._same + 1 if end == self._last_end else 1
        self._last_end = end

    def _count_in_vain(self, ending: AttemptResult) -> None:
        self._losses_in_vain += 1
        if self._losses_in_vain > LOSSES_IN_VAIN:
            self._give_up(
                ending,
                f"{self._losses_in_vain} attempts without a new checkpoint or step between them: "
                "use hosts that last longer, or save more often with checkpoint.every_steps",
            )

    def _charge_preemptions(self, ending: AttemptResult) -> None:
        self.losses += 1
        limit = self._policy.preemptions
        if limit is not None and self.losses > limit:
            self._give_up(ending, f"retries.preemptions: {limit} is spent")
        else:
            self._count_in_vain(ending)

    def _charge_failures(self, ending: AttemptResult) -> None:
        limit = self._policy.failures
        self.failures += 1
        spent = f"retries.failures: {limit} is spent"
        if self._same >= SAME_ENDS:
            step = "before its first step" if ending.step is None else f"after step {ending.step}"
            why = f"{self._same} times in a row, each time {step}: deterministic"
            self._give_up(ending, why + ADVICE * ending.is_unexplained)
        elif self.failures > limit and ending.is_unexplained:
            why = f"{self._unexplained} times without a new checkpoint or step between them"
            self._give_up(ending, f"{why}; {spent}{ADVICE}")
        elif self.failures > limit:
            self._give_up(ending, spent if limit else "")

    def _give_up(self, ending: AttemptResult, why: str) -> None:
        reason = f"{ending.reason} ({why})" if why else ending.reason
        repeats = self._same >= SAME_ENDS
        help_text = REPEATED_HELP if repeats else HELP.get(ending.end_reason, PROGRAM_HELP)
        self._over = RunEnded(RunState.FAILED, reason, help_text)

    def _back_off_s(self) -> float:
        """Returns 0 after the first failure, then a longer time after each without a checkpoint."""
        if self._in_a_row <= 1:
            return 0.0
        return min(FIRST_BACK_OFF_S * 2 ** (self._in_a_row - 2), LONGEST_BACK_OFF_S)
