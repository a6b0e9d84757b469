"""The states of a run, and the reasons for which its attempts end."""

from enum import StrEnum


class RunState(StrEnum):
    """The state of a run. Those from LOST on are found when its folder is read."""

    QUEUED = "queued"
    """Waits in the queue of a cluster, which starts it."""
    PROVISIONING = "provisioning"
    """Acquires hosts."""
    STARTING = "starting"
    """Checks the hosts and starts the program."""
    RUNNING = "running"
    BACKING_OFF = "backing_off"
    """Waits before the next attempt, after a failure."""
    WAITING_FOR_HOSTS = "waiting_for_hosts"
    WAITING_FOR_RUNS = "waiting_for_runs"
    """Waits for the runs in the job's `after`."""
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"
    """Stopped by `launch stop` or SIGTERM."""
    INTERRUPTED = "interrupted"
    """Stopped by Ctrl-C or a closed terminal."""
    OVER_BUDGET = "over_budget"
    """Stopped because the job's budget was used up."""
    CANCELLED = "cancelled"
    """Never started: a run in the job's `after` ended without finishing."""
    LOST = "lost"
    """The launcher process exited without recording a result."""
    REMOTE = "remote"
    """Driven by another machine."""
    BY_HAND = "by hand"
    """Started without a launcher."""
    UNKNOWN = "unknown"
    """The folder does not show whether a process runs the run."""

    @property
    def is_terminal(self) -> bool:
        """Whether the run has ended; it can be resumed unless it has finished."""
        return self in _TERMINAL

    @property
    def is_waiting(self) -> bool:
        """Whether the run waits for its next attempt."""
        return self in (
            RunState.BACKING_OFF, RunState.WAITING_FOR_HOSTS, RunState.WAITING_FOR_RUNS
        )  # fmt: skip


_TERMINAL = frozenset(
    [
        RunState.FINISHED, RunState.FAILED, RunState.STOPPED, RunState.INTERRUPTED,
        RunState.OVER_BUDGET, RunState.CANCELLED, RunState.LOST,
    ]
)  # fmt: skip


class EndReason(StrEnum):
    """The reason that an attempt ended."""

    FINISHED = "finished"
    STOPPED = "stopped"
    """An orderly stop that the user requested."""
    RESIZED = "resized"
    """An orderly stop that the supervisor requested, because more hosts are available."""
    SHRUNK = "shrunk"
    """An orderly stop that the supervisor requested, because a queue gives hosts to another run."""
    BUDGET = "budget"
    """An orderly stop that the supervisor requested, because the budget is used up."""
    CRASH = "crash"
    HANG = "hang"
    LOST = "lost"
    """The loss of a host with everything that ran on it."""
    PREEMPTED = "preempted"
    """A stop of the programs that the user did not request."""
    REWOUND = "rewound"
    """The program goes back to a checkpoint, without the examples of a step with a spike."""
    WRONG_HOST = "wrong_host"
    """A host computes wrong numbers: the program goes back to a checkpoint, without that host."""
    FINAL = "final"
    """A failure that a retry would repeat: bad configuration, bad data or numbers."""

    @property
    def is_resize(self) -> bool:
        """Whether the next attempt has another number of hosts on purpose."""
        return self in (EndReason.RESIZED, EndReason.SHRUNK)

    @property
    def is_restart(self) -> bool:
        """Whether the next attempt follows on purpose, so that the end is no failure."""
        return self.is_resize or self in (EndReason.REWOUND, EndReason.WRONG_HOST)

    @property
    def is_failure(self) -> bool:
        """Whether the end counts against `retries.failures`."""
        return self in (EndReason.CRASH, EndReason.HANG)

    @property
    def is_orderly(self) -> bool:
        """Whether the program ended by itself, with everything saved."""
        return self in (
            EndReason.FINISHED, EndReason.STOPPED, EndReason.RESIZED, EndReason.SHRUNK,
            EndReason.BUDGET, EndReason.REWOUND, EndReason.WRONG_HOST,
        )  # fmt: skip

    @property
    def is_loss(self) -> bool:
        """Whether the end counts against `retries.preemptions`."""
        return self in (EndReason.LOST, EndReason.PREEMPTED)
