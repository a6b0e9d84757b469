"""What the programs of a rehearsed attempt do until it ends.

Time passes from one event to the next: the steps between two saves are one event. Only before a
hang, and until it is detected, all steps and heartbeats of the watched processes are sent.
"""

import math
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from launcher.core.results import GangResult, ProcessExit
from launcher.gang.gang import Program
from launcher.gang.monitor import HANG_GRACE_S, GangMonitor
from launcher.gang.preflight import Seen
from launcher.gang.watch import CHECK_INTERVAL_S
from launcher.health.lost_hosts import SILENCE_S, LostHostDetector
from launcher.planning.planner import FAILURE_GRACE_S
from launcher.planning.spec import LaunchSpec
from launcher.rehearsal.faults import FaultKind
from launcher.rehearsal.hosts import HOSTS_CHECK_S, Hit, StubGang, StubHosts, Unit
from launcher.rehearsal.record import RehearsedRun
from launcher.rehearsal.storage import SaveSchedule, Storage
from launcher.rehearsal.watched import Watched
from trainer.contract.config.job import Job
from trainer.contract.protocol.events import (
    CheckedEvent,
    CheckpointSavedEvent,
    Event,
    PhaseEvent,
    RestoredEvent,
    StepEvent,
)
from trainer.contract.protocol.exit_codes import ProgramExit

KILLED = int(signal.SIGKILL)
"""Wait status of a program that a signal killed, which is the usual end of a crash."""
STEPS_BEFORE_HANG = 60
"""Steps that are sent one by one before a hang. They outnumber the other times that the detector
has learned, so that its quantile is that of steps."""


class _InterruptedError(Exception):
    """Raised when a fault has hit the attempt, when hosts have to stop, or have to stop now."""


class RehearsedGang(StubGang):
    """The hosts of an attempt, with programs that take the time of the rehearsal's timings."""

    def __init__(
        self, hosts: StubHosts, units: Sequence[Unit], run: RehearsedRun, storage: Storage
    ) -> None:
        super().__init__(units)
        self._hosts, self._run, self._storage = hosts, run, storage

    def run_preflight(self, platform: str) -> dict[int, Seen]:
        """Finds nothing wrong with any host."""
        del platform
        return {}

    def check(
        self, program: Program, known: Mapping[int, CheckedEvent] | None = None
    ) -> dict[int, CheckedEvent]:
        """Passes the time in which new hosts check themselves. Raises LostError."""
        del program, known
        if self._hosts.has_started:
            self._hosts.clock.sleep(self._hosts.timings.check_s)
        self._hosts.raise_if_lost()
        return {}

    def run(
        self,
        program: Program,
        coordinator_port: int | None = None,
        monitor: GangMonitor | None = None,
    ) -> GangResult:
        """Runs the programs until the attempt ends. Raises LostError, HorizonReachedError."""
        del coordinator_port
        assert isinstance(program, LaunchSpec) and monitor is not None
        self._hosts.raise_if_lost()
        monitor.on_start()
        attempt = Attempt(program, self._hosts, monitor, self._run, self._storage)
        self._hosts.hit, self.is_running = None, True
        try:
            return attempt.play()
        finally:
            self.is_running, self._hosts.has_started = False, True
            self._hosts.has_standby = monitor.wants_standby()


class Attempt:
    """One attempt: start, restore, steps and saves, and its end."""

    def __init__(
        self,
        launch: LaunchSpec,
        hosts: StubHosts,
        monitor: GangMonitor,
        run: RehearsedRun,
        storage: Storage,
    ) -> None:
        job = launch.job
        assert isinstance(job, Job)
        self._hosts, self._clock, self._timings = hosts, hosts.clock, hosts.timings
        self._monitor, self._run, self._storage = monitor, run, storage
        self._job, self._grace_s = job, launch.grace_s
        self._step_s = self._timings.step_s * hosts.full_size / launch.plan.world.processes
        self._step = self._reported = storage.committed
        """The last step that is done, and the last one that was reported."""
        self._began_at = storage.committed
        """The step from which it continues."""
        self._step_began_s: float | None = None
        """Time at which the step in progress began; None outside of steps."""
        self._stops = self._is_over = self._has_phases = self._is_watched = False
        """`_is_watched`: whether the last step was sent by every watched process."""
        self._given_up_s = math.inf
        """Time at which a stop that takes too long is cut off."""
        self._writing: int | None = None
        """Step of the checkpoint that is being written."""
        self._schedule = SaveSchedule(job.checkpoint, job.last_step, 0.0)
        self._watched = Watched(hosts, monitor, hosts.watched(launch))

    def play(self) -> GangResult:
        """Returns the result of the attempt. Raises HorizonReachedError."""
        try:
            self._start()
            self._train()
            self._finish()
            return _in_order(ProgramExit.FINISHED, self._clock.now_s)
        except _InterruptedError:
            return self._stop() if self._hosts.hit is None else self._end_by(self._hosts.hit)
        finally:
            self._is_over = True

    def _start(self) -> None:
        timings, hosts = self._timings, self._hosts
        self._watched.started()
        later_s = timings.restart_s if hosts.has_standby else timings.cold_restart_s
        self._pass(later_s if hosts.has_started else timings.first_start_s)
        self._has_phases = True
        if self._step:
            self._watched.phase("restore", "begin")
            self._pass(timings.restore_s)
            self._watched.phase("restore", "end")
            self._send(RestoredEvent(time=self._clock.now_s, step=self._step))
        self._run.step = self._step
        self._watched.phase("train", "begin")
        self._schedule.saved_at_s = self._clock.now_s
        self._pass(timings.first_step_s)

    def _train(self) -> None:
        while self._step < self._job.last_step:
            until = self._schedule.next_save(self._step, self._clock.now_s, self._step_s)
            self._run_steps(until)
            if self._job.checkpoint is not None:
                self._save()
        self._await_commit()

    def _run_steps(self, until: int) -> None:
        if self._step == self._began_at:
            self._run_watched_step()  # the account needs the first step of an attempt
        if hang := self._hosts.next_hang():
            ahead = math.floor((hang.at_s - self._clock.now_s) / self._step_s) - STEPS_BEFORE_HANG
            self._run_block(min(until, self._step + max(0, ahead)))
            while self._step < until:
                self._run_watched_step()
        self._run_block(until)

    def _run_block(self, until: int) -> None:
        """Runs steps as one event."""
        if until == self._step:
            return
        self._is_watched = False
        began_s, first = self._clock.now_s, self._step

        def count() -> None:
            done = math.floor((self._clock.now_s - began_s) / self._step_s + 1e-9)
            self._step = min(first + done, until)
            self._step_began_s = began_s + (self._step - first) * self._step_s
            self._run.step = self._step

        self._pass(self._left_s(until), count)
        self._step = self._run.step = until
        self._step_began_s = None
        self._report()

    def _run_watched_step(self) -> None:
        self._step_began_s = self._clock.now_s
        self._watched.pass_step(self._step_s, self._pass)
        self._step = self._reported = self._run.step = self._step + 1
        self._step_began_s = None
        self._watched.stepped(self._step)
        self._is_watched = True

    def _left_s(self, until: int) -> float:
        return (until - self._step) * self._step_s

    def _report(self) -> None:
        """Reports the last step that is done, as one event for all processes."""
        if self._step > self._reported:
            self._send(StepEvent(time=self._clock.now_s, step=self._step))
            self._reported = self._step

    def _report_end(self, process: int) -> None:
        """Reports the last step of the process that ends the attempt, and of process 0."""
        self._report()
        if self._step > self._began_at:
            for one in {0, process}:
                self._watched.reported(self._step, one)

    def _save(self) -> None:
        """Begins to save, once the save before is written; steps go on while this one is."""
        self._await_commit()
        self._send_phase("save", "begin")
        self._schedule.saved_at_s = self._clock.now_s
        self._writing = step = self._step
        self._clock.at(self._clock.now_s + self._timings.save_s, lambda: self._commit(step))
        self._pass(min(self._timings.save_blocked_s, self._timings.save_s))
        self._send_phase("save", "end")

    def _commit(self, step: int) -> None:
        hit = self._hosts.hit
        if self._is_over or (hit is not None and hit.kind is not FaultKind.HANG):
            return
        self._storage.committed, self._writing = step, None
        self._send(CheckpointSavedEvent(time=self._clock.now_s, step=step))
        if self._hosts.lacks_hosts:
            self._clock.at(self._clock.now_s + HOSTS_CHECK_S, lambda: None)

    def _await_commit(self) -> None:
        if self._writing is None:
            return
        self._send_phase("commit", "begin")
        while self._writing is not None:
            self._clock.pass_until(math.inf)
            self._react()
        self._send_phase("commit", "end")

    def _pass(self, seconds: float, on_time: Callable[[], None] = lambda: None) -> None:
        """Lets time pass. `on_time` follows each event in it. Raises _InterruptedError."""
        end_s = self._clock.now_s + seconds
        try:
            while self._clock.pass_until(end_s):
                on_time()
                self._react()
        finally:
            on_time()

    def _react(self) -> None:
        """Raises _InterruptedError when the attempt cannot go on, or should not."""
        if self._hosts.hit is not None or self._clock.now_s >= self._given_up_s:
            raise _InterruptedError
        if not self._stops and self._monitor.should_stop():
            self._stops = True
            raise _InterruptedError

    def _stop(self) -> GangResult:
        """Ends the programs in order: after the step in progress, saved, within the grace."""
        self._given_up_s = self._clock.now_s + self._grace_s
        self._clock.at(self._given_up_s, lambda: None)
        try:
            if self._step_began_s is not None:
                self._pass(max(0.0, self._step_began_s + self._step_s - self._clock.now_s))
                self._step = self._run.step = self._step + 1
                self._step_began_s = None
                self._report()
            if self._job.checkpoint is not None and self._step > self._saved_step:
                self._save()
            self._await_commit()
            self._finish()
        except _InterruptedError:
            if self._hosts.hit is not None:
                return self._end_by(self._hosts.hit)
            cut_off = ProcessExit(KILLED, self._clock.now_s, stopped=True)
            return GangResult({0: cut_off}, None)
        return _in_order(ProgramExit.STOPPED, self._clock.now_s)

    def _finish(self) -> None:
        """Ends the programs, which have saved. Raises _InterruptedError."""
        self._report_end(0)
        self._watched.end_phases()
        self._pass(self._timings.stop_s)

    @property
    def _saved_step(self) -> int:
        """Step of the newest checkpoint that is written or being written."""
        return self._storage.committed if self._writing is None else self._writing

    def _end_by(self, hit: Hit) -> GangResult:
        """Passes the time until a fault is detected and the programs have ended."""
        if hit.kind is not FaultKind.HANG:
            self._report_end(hit.process)
        result = ENDS[hit.kind](self, hit)
        if self._has_phases:
            self._run.detection_s += self._clock.now_s - hit.at_s
        return result

    def _crash(self, hit: Hit) -> GangResult:
        self._clock.sleep(self._timings.crash_end_s)
        return GangResult({hit.process: ProcessExit(KILLED, hit.at_s)}, hit.process)

    def _lose_host(self, hit: Hit) -> GangResult:
        if self._timings.loss_end_s is None:
            self._await_silence(hit.process)
            self._clock.sleep(FAILURE_GRACE_S)
        else:
            self._clock.sleep(self._timings.loss_end_s)
        lost = ProcessExit(None, hit.at_s, lost=f"it has not answered for {SILENCE_S:.0f} s")
        return GangResult({hit.process: lost}, hit.process)

    def _await_silence(self, process: int) -> None:
        detector = LostHostDetector(self._clock.now_s)
        detector.answered(process)
        while not detector.lost(self._clock.now_s):
            self._clock.sleep(CHECK_INTERVAL_S)

    def _hang(self, hit: Hit) -> GangResult:
        hang = self._watched.until_hang(hit.process)
        self._clock.sleep(HANG_GRACE_S)
        return GangResult({}, None, hang)

    def _send_phase(self, name: str, edge: Literal["begin", "end"]) -> None:
        if self._is_watched:
            self._watched.phase(name, edge)
        else:
            self._send(PhaseEvent(time=self._clock.now_s, name=name, edge=edge))

    def _send(self, event: Event) -> None:
        self._hosts.listener.on_event(event)


ENDS: Mapping[FaultKind, Callable[[Attempt, Hit], GangResult]] = {
    FaultKind.PROCESS: Attempt._crash,
    FaultKind.HOST: Attempt._lose_host,
    FaultKind.HANG: Attempt._hang,
}
"""What follows a fault. A preemption is an orderly stop, and the loss of the host after it."""


def _in_order(code: ProgramExit, now_s: float) -> GangResult:
    return GangResult({0: ProcessExit(code << 8, now_s)}, None)
