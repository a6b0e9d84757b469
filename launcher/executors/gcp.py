"""Runs on Cloud TPU slices: requests them, replaces preempted ones, releases them."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from rich.prompt import Confirm

from launcher.cluster.schema import Ssh, cluster_key
from launcher.core.environment import child_environment
from launcher.core.errors import HostError
from launcher.core.exit_codes import INTERRUPTED, OK
from launcher.core.formatting import format_seconds
from launcher.core.states import RunState
from launcher.executors.inspect_hosts import inspect_by_ssh
from launcher.executors.ssh import (
    HostMonitor,
    HostsLostError,
    RemoteExecutor,
    RemoteSubmission,
    RunRequest,
)
from launcher.gang.preflight import Seen
from launcher.planning.spec import LaunchSpec
from launcher.providers.gcp.pod import LATE, UNWANTED, TpuSliceRequest
from launcher.providers.gcp.prices import cost_line, dollars_per_hour, limit_line
from launcher.providers.gcp.slice_records import list_slices
from launcher.providers.ssh.connection import Host, hosts_of
from launcher.providers.ssh.parallel import everywhere
from launcher.providers.ssh.run_handle import RemoteRun
from launcher.runs.directory import RunDir
from launcher.runs.folder import REMOTE, is_alive
from launcher.runs.remote import localize_copy
from launcher.runs.state_file import RecordedState

KEEPER = "launcher.executors.gcp_reclaimer"
ASK_S, COPY_S = 10.0, 10.0
ANSWER_S, ANSWER_TIMEOUT_S, POLL_INTERVAL_S = 30.0, 300.0, 2.0
COPY_SHARE = 20
"""Minimum pause between two copies of the run's folder, as a multiple of the copy's duration."""
STOP_TIMEOUT_S = 600.0
"""Seconds for a run to save a checkpoint before its hosts are released."""


class SliceSubmission:
    """Runs a job on TPU slices, and requests new slices after each preemption."""

    def __init__(self, remotely: RemoteSubmission, *, losses: int = 0) -> None:
        """`losses`: number of times that the run's hosts were preempted before."""
        self._remotely, self._print, self._folder = remotely, remotely.print, remotely.folder
        self._agreed = remotely.options.assume_yes
        self._losses = losses

    def submit(self, begin: RunRequest) -> int:
        """Runs the job to its end and returns the exit code of `launch`.

        Raises what `RemoteSubmission.submit` raises, except HostsLostError.

        All requested slices are released, however this process ends: the keeper process releases
        those that remain.
        """
        for folder, note in list_slices():
            if note.run == str(self._folder) and note.stage == "kept":
                TpuSliceRequest(folder, note).release()
        while True:
            try:
                return self._run_on_slice(begin)
            except HostsLostError:
                begin = self._after_loss(begin)

    def replaced(self, begin: RunRequest) -> int:
        """Resumes the run on new slices. Another process has detected the loss of its hosts."""
        return self.submit(self._after_loss(begin))

    def _after_loss(self, begin: RunRequest) -> RunRequest:
        """Returns the request that resumes the run. Raises HostError after too many losses."""
        self._losses += 1
        most = begin.job.retries.preemptions
        if most is not None and self._losses > most:
            raise HostError(f"the hosts were preempted (retries.preemptions: {most} is spent)")
        if not self._remotely.has_begun:
            return begin
        return replace(begin, text=None, overrides=(), fresh=False)

    def _run_on_slice(self, begin: RunRequest) -> int:
        """Runs on newly requested slices, and returns the exit code of `launch`.

        Raises HostsLostError after a preemption, once the slices are released and the run's folder
        is copied here.
        """
        pod = self._request()
        watch = SliceMonitor(pod)
        code = None
        try:
            code = self._drive(self._wait_ready(pod), watch, begin)
            return code
        finally:
            if not self._remotely.is_there:  # else the keeper manages both
                release(pod, code or self._remotely.refusal_code, self._print)

    def _drive(self, settings: Ssh, watch: "SliceMonitor", begin: RunRequest) -> int:
        """Submits the run. After a preemption, copies its folder here and raises HostsLostError."""
        try:
            return self._remotely.submit(begin, settings, watch)
        except HostsLostError:
            pass
        except HostError:
            if not watch.are_lost():
                raise
        self._print("the hosts were preempted: releasing them and requesting others")
        watch.fetch(self._folder)
        self._remotely.is_there = False
        raise HostsLostError

    def _request(self) -> TpuSliceRequest:
        """Requests slices, once they are recorded and have a keeper process.

        Raises KeyboardInterrupt when the user does not confirm the cost.
        """
        remotely = self._remotely
        pod = TpuSliceRequest.of(remotely.cluster, remotely.cluster_ref, self._folder, self._losses)
        self._print(cost_line(pod.wanted))
        self._print(limit_line(pod.wanted))
        if not self._agreed and sys.stdin.isatty() and not Confirm.ask("continue?", default=False):
            raise KeyboardInterrupt
        self._agreed = True
        pod.write_record()
        pod.hold()
        start_keeper(pod.folder)
        self._print(f"requesting {pod.note.resource_id}")
        pod.send_request()
        return pod

    def _wait_ready(self, pod: TpuSliceRequest) -> Ssh:
        """Waits until the hosts accept SSH, and returns their settings.

        A run that has begun has the state `waiting_for_hosts` meanwhile.
        """
        with self._waiting():
            settings = pod.wait(self._print)
            self._print("waiting for the hosts to accept SSH")
            wait_until_they_answer(hosts_of(settings))
            return settings

    def _waiting(self) -> AbstractContextManager[object]:
        if not self._losses or not self._remotely.has_begun or is_alive(self._folder):
            return nullcontext()
        run = RunDir.open(self._folder)
        run.set_state(RunState.WAITING_FOR_HOSTS, reason="the hosts were preempted")
        return run


class GcpExecutor(RemoteExecutor):
    """Starts runs on Cloud TPU slices."""

    def _start(self, submission: RemoteSubmission, begin: RunRequest) -> int:
        return SliceSubmission(submission).submit(begin)

    def inspect_hosts(
        self, spec: LaunchSpec, on_status: Callable[[str], None]
    ) -> Mapping[int, Seen]:
        return inspect_by_ssh(spec, _held_slices(spec, on_status), on_status)


def _held_slices(spec: LaunchSpec, on_status: Callable[[str], None]) -> Ssh:
    """Returns the SSH settings of slices that are held for a run. Requests no new slices.

    Raises HostError when none are held.
    """
    key = cluster_key(spec.cluster_ref.name)
    for folder, note in list_slices():
        if note.cluster_key == key and note.stage in ("running", "kept"):
            return TpuSliceRequest(folder, note).wait(on_status)
    raise HostError(
        f"no slices of {spec.cluster_name} are allocated, and the doctor never requests new ones",
        hint="A launch inspects its hosts before its program starts. After a run that failed, its "
        "slices are kept for provider.autostop_minutes",
    )


class SliceMonitor(HostMonitor):
    """Checks whether the slices still exist, and copies the run's folder for the next ones."""

    takes_the_run_along = True

    def __init__(self, pod: TpuSliceRequest) -> None:
        self.copy = pod.folder / "copy"
        self._pod = pod
        self._ask_at = self._copy_at = 0.0

    def began(self) -> None:
        self._refuse_unwanted()
        self._pod.set("running")

    def poll(self, run: RemoteRun) -> None:
        if time.monotonic() >= self._ask_at:
            if self.are_lost():
                raise HostsLostError
            if self._pod.is_over_time:
                raise OverTimeError(
                    f"{over_time(self._pod)}: the run is stopped with a checkpoint, and the slices "
                    "are given back"
                )
            self._ask_at = time.monotonic() + ASK_S
        if time.monotonic() >= self._copy_at:
            began = time.monotonic()
            self.take_copy(run)
            now = time.monotonic()
            self._copy_at = now + max(COPY_S, COPY_SHARE * (now - began))

    def are_lost(self) -> bool:
        """Returns whether slices are lost. Raises HostError if `launch down` released them."""
        self._refuse_unwanted()
        try:
            return self._pod.is_lost()
        except HostError:
            return False  # the API does not answer now

    @property
    def last_copy(self) -> Path | None:
        """Newest complete copy of the run's folder; None when there is none."""
        return next((copy for copy in (self.copy, self._older) if copy.is_dir()), None)

    @property
    def _older(self) -> Path:
        return self.copy.with_name("copy.old")

    def fetch(self, folder: Path) -> None:
        """Makes the run a local one that no process runs, from the last copy of its folder."""
        if copy := self.last_copy:
            shutil.copytree(copy, folder, dirs_exist_ok=True)
        try:
            run = RemoteRun.read(folder)
        except (ValueError, HostError):  # unreadable: the slices' record has the same fields
            note = self._pod.note
            localize_copy(folder, note.cluster_ref, note.launched_in)
            return
        if run is not None:
            run.localize(folder)

    def _refuse_unwanted(self) -> None:
        if not self._pod.is_wanted:
            raise HostError(UNWANTED)

    def take_copy(self, run: RemoteRun) -> None:
        """Copies the run's folder, or keeps the previous copy. `last_copy` is always complete."""
        new = self.copy.with_name("copy.new")
        shutil.rmtree(new, ignore_errors=True)
        with suppress(HostError):
            run.copy(new)
            if self.copy.is_dir():
                shutil.rmtree(self._older, ignore_errors=True)
                self.copy.rename(self._older)
            new.rename(self.copy)
            shutil.rmtree(self._older, ignore_errors=True)


class OverTimeError(HostError):
    """Slices have been held for longer than provider.max_hours."""


def over_time(pod: TpuSliceRequest) -> str:
    """Returns the reason for a stop at provider.max_hours."""
    return f"{pod.note.resource_id} is held for provider.max_hours: {_max_hours(pod):g}"


def give_up(pod: TpuSliceRequest, on_status: Callable[[str], None], why: str = "") -> bool:
    """Stops the run on the slices, copies its folder here if possible, and deletes the slices.

    `why` becomes the run's reason. Returns False when the slices may still appear, see
    `TpuSliceRequest.delete`. Raises HostError when slices are still held, or when they are
    deleted but the last copy cannot be moved into the run's folder.
    """
    with suppress(OSError):  # a full disk must not keep slices
        pod.set("ending")
    with pod.ending() as is_recorded:
        if not is_recorded:
            return True
        watch = SliceMonitor(pod)
        is_on_it = _save(pod, watch, on_status)
        if not pod.delete():
            return False
        if is_on_it:
            _fetch_run(watch, Path(pod.note.run), why)
        pod.forget()
        return True


def _save(pod: TpuSliceRequest, watch: SliceMonitor, on_status: Callable[[str], None]) -> bool:
    """Stops and copies the run. Returns whether it is on these slices, as far as known."""
    folder = Path(pod.note.run)
    try:
        run = RemoteRun.read(folder)
    except (ValueError, HostError, OSError) as error:
        problem = " ".join(str(error).split())[:200]
        on_status(f"warning: {folder / REMOTE} cannot be read: {problem}")
        return True
    if run is None or str(pod.folder) not in (run.settings.config or ""):
        return False
    try:
        stop_in_order(run)
        watch.take_copy(run)
    except Exception as error:  # the slices are deleted in any case
        on_status(f"warning: the run could not be stopped and copied: {error}")
    return True


def _fetch_run(watch: SliceMonitor, folder: Path, why: str) -> None:
    """Restores the run's folder. On failure, raises HostError with the last copy's path."""
    try:
        watch.fetch(folder)
        if why:
            record_reason(folder, why)
    except (OSError, shutil.Error) as error:
        raise HostError(
            f"the slices are gone, but the run's folder could not be copied to {folder}: {error}. "
            f"The last copy is in {watch.last_copy}"
        ) from None


def stop_in_order(run: RemoteRun) -> None:
    """Stops a run with a checkpoint, as `launch stop` does, and waits for its end."""
    with run.start("stop", terminal=False) as process:
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()


def record_reason(folder: Path, reason: str) -> None:
    """Records the reason in the state.json of a run that no process runs, for `launch status`."""
    replace(RecordedState.read_valid(folder), reason=reason).write(folder)


def release(pod: TpuSliceRequest, code: int | None, on_status: Callable[[str], None]) -> None:
    """Releases the slices, or keeps them for provider.autostop_minutes after a run that failed.

    `code`: exit code of `launch`; None when no run was started.
    """
    minutes = pod.wanted.settings.autostop_minutes
    if code in (None, OK, INTERRUPTED) or not minutes:
        on_status(f"giving {pod.note.resource_id} back")
        if not pod.release():
            on_status(f"the API has not shown {pod.note.resource_id} yet: {LATE}")
        return
    pod.set("kept", time.time() + 60 * minutes)
    on_status(_kept_line(pod, minutes))


def wait_until_they_answer(hosts: Sequence[Host]) -> None:
    """Waits until all hosts accept SSH: a slice is ready before its hosts have created their user.

    Raises HostError with the hosts that do not accept it within five minutes.
    """
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    while True:
        try:
            everywhere(hosts, lambda number: hosts[number].run("true", ANSWER_S))
            return
        except HostError:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_INTERVAL_S)


def start_keeper(pod: Path) -> None:
    """Starts the keeper process, which no terminal ends: it releases slices that are left over."""
    with (pod / "keeper.log").open("ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", KEEPER, str(pod)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=child_environment(),
        )


def _max_hours(pod: TpuSliceRequest) -> float:
    return pod.wanted.settings.max_hours or 0.0


def _kept_line(pod: TpuSliceRequest, minutes: float) -> str:
    cost = dollars_per_hour(pod.wanted)
    money = f", about ${cost * minutes / 60:,.2f}" if cost is not None else ""
    shell = f"ssh -F {pod.folder}/ssh_config -i {pod.folder}/key -l {pod.wanted.user}"
    return (
        f"the hosts stay for {format_seconds(60 * minutes)}{money}, to look at them: {shell} HOST; "
        f"give them back now: launch down {pod.note.resource_id}"
    )
