"""How long the parts of a run take in a rehearsal: measured, or by default.

The defaults are figures of docs/reference/benchmarks.md, measured on two hosts that share two
cores. They are replaced by those of an earlier run, see `measured.py`.
"""

from dataclasses import dataclass

from launcher.gang.monitor import GRACE_S
from launcher.planning.planner import TrainingLaunch

FIRST_START_S, COLD_RESTART_S = 15.8, 3.9
"""Seconds of "Start", two hosts: cold; and on a cluster that is up, with a filled cache."""
RESTART_S, FIRST_STEP_S, AGENT_START_S = 0.8, 0.4, 4.1
"""Seconds of "Recovery" after a crash: processes that stand by and the executable (0.1 + 0.7); the
first step; and by how much a lost Ray node (6.0) exceeds a crash (1.9)."""
REPLACEMENT_S = 180.0
"""Seconds until a lost host is replaced. An assumption: it depends on the provider."""
CHECK_S = 1.0
"""Seconds in which a new host checks its versions, code and data, beside its imports."""
RESTORE_S_PER_GIB, BLOCKED_S_PER_GIB, WRITE_S_PER_GIB = 2.4, 0.4, 2.4
"""Seconds per GiB of a host, from the run with 1 GiB of state on two hosts: the state is back after
1.2 s, and a save blocks steps for 0.2 s. A write takes as long as a read."""
LEAST_S = 0.1
GIB = 2.0**30


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Seconds of the parts of a run on all its hosts."""

    step_s: float
    """A step on all hosts of the run; on fewer hosts it takes longer in proportion."""
    first_start_s: float = FIRST_START_S
    """From the begin of the first attempt to its first step, a restore excluded."""
    restart_s: float = RESTART_S
    """The same of a later attempt, in processes that stand by."""
    cold_restart_s: float = COLD_RESTART_S
    """The same where no processes stand by."""
    first_step_s: float = FIRST_STEP_S
    """Additional seconds of the first step of an attempt."""
    agent_start_s: float = AGENT_START_S
    """A host that joins the run until it is ready: its agent and the imports of its program."""
    check_s: float = CHECK_S
    """The check of such a host."""
    restore_s: float = LEAST_S
    """Reading a checkpoint."""
    save_blocked_s: float = 0.0
    """Steps that a save blocks."""
    save_s: float = LEAST_S
    """From the begin of a save to its commit; steps run meanwhile."""
    crash_end_s: float = 0.1
    """From a crash to the end of the attempt."""
    loss_end_s: float | None = None
    """From the loss of a host to the end of the attempt; None: until its silence is noticed."""
    stop_s: float = GRACE_S
    """From the end of the last step of an orderly stop, saved, to the end of the attempt."""
    replacement_s: float | None = REPLACEMENT_S
    """From the loss of a host until another one takes its place; None: never."""
    notice_s: float = 30.0
    """From the notice of a preemption until the host is gone."""


def default_timings(launch: TrainingLaunch, step_s: float) -> Timings:
    """Returns timings of a job that was never measured, from the size of its checkpoint."""
    gib = launch.checkpoint_bytes / GIB / launch.plan.world.processes
    return Timings(
        step_s=step_s,
        restore_s=max(LEAST_S, RESTORE_S_PER_GIB * gib),
        save_blocked_s=BLOCKED_S_PER_GIB * gib,
        save_s=max(LEAST_S, (BLOCKED_S_PER_GIB + WRITE_S_PER_GIB) * gib),
    )
