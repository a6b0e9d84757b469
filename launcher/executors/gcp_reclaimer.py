"""Releases slices: `python -m launcher.executors.gcp_reclaimer POD_FOLDER`, one per request.

The keeper waits while another process manages the slices, and then takes over. It releases slices
without a run immediately. It releases slices with a run when the run is over, and replaces
preempted ones. It releases kept slices when their time is over. It ends when all slices are
released.
"""

import os
import signal
import sys
import time
from pathlib import Path

from launcher.core.errors import HostError, SlipwayError
from launcher.core.exit_codes import print_error
from launcher.core.files import lock
from launcher.core.wait import wait_until
from launcher.executors.gcp import (
    ASK_S,
    OverTimeError,
    SliceMonitor,
    SliceSubmission,
    give_up,
    over_time,
    record_reason,
    release,
    stop_in_order,
)
from launcher.executors.options import LaunchOptions
from launcher.executors.ssh import HostsLostError, RemoteSubmission, RunRequest
from launcher.providers.gcp import pod as pods
from launcher.providers.gcp.failures import Failures, Trouble
from launcher.providers.gcp.pod import TpuSliceRequest
from launcher.providers.gcp.slice_records import (
    SliceRecord,
    UnreadableRecordError,
    is_recorded,
    read_record,
)
from launcher.providers.ssh.run_handle import RemoteRun
from launcher.runs.records import RunRecordError
from launcher.runs.status import read_status
from trainer.contract.config.command import load_job

POLL_INTERVAL_S, RETRY_S = 1.0, 60.0
MOST_FAILURES = 10
"""Consecutive unexpected errors after which the keeper only releases the slices."""


def main() -> int:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    folder = Path(sys.argv[1])
    with (folder / "lock").open("w") as file:
        wait_until(lambda: not is_recorded(folder) or lock(file), poll_interval_s=POLL_INTERVAL_S)
        Keeper(folder).keep()
    return 0


class Keeper:
    """Manages the slices of one request when no other process does."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._trouble = Trouble(folder)
        self._unexpected, self._unanswered, self._uncopied = Failures(), Failures(), Failures()
        self._lost: RemoteRun | None = None
        """The run whose hosts were preempted; None once it is on new hosts."""
        self._why = ""
        """Reason for releasing the slices, once that is decided; else ""."""

    def keep(self) -> None:
        """Manages the slices until they are released."""
        while is_recorded(self._folder):
            try:
                self._act()
            except Exception as error:  # only success may end the loop
                self._report(error)
                self._wait()

    def _act(self) -> None:
        """Performs the next action. May raise any exception."""
        try:
            note = read_record(self._folder)
        except UnreadableRecordError as error:
            if self._unexpected.add() < MOST_FAILURES:
                raise
            log(f"{error}: the slices are given back")
            pods.release_unreadable(self._folder)
            return
        if note is not None:
            self._act_on(TpuSliceRequest(self._folder, note), note)

    def _act_on(self, pod: TpuSliceRequest, note: SliceRecord) -> None:
        if self._why:
            self._give_up(pod, self._why)
        elif note.stage == "running":
            self._follow_run(pod)
        elif note.stage == "kept" and note.delete_at and time.time() < note.delete_at:
            self._trouble.clear()
            time.sleep(POLL_INTERVAL_S)
        elif note.stage == "ending" and note.is_seen:
            give_up(pod, log)
        else:
            pod.release_late()

    def _follow_run(self, pod: TpuSliceRequest) -> None:
        """Follows the run until it is over, its hosts are lost, or a limit is reached."""
        try:
            self._follow(pod)
        except Exception as error:
            can_pass = isinstance(error, HostError) and not isinstance(error, RunRecordError)
            if can_pass or self._unexpected.add() < MOST_FAILURES:
                raise
            kind = type(error).__name__
            self._give_up(pod, f"the run could not be followed: {kind}: {error}")

    def _follow(self, pod: TpuSliceRequest) -> None:
        folder, watch = Path(pod.note.run), SliceMonitor(pod)
        if self._lost is not None:
            self._replace(pod, self._lost, watch)
            return
        run = RemoteRun.read(folder)
        if run is None:
            release(pod, read_status(folder).exit_code, log)
            return
        try:
            why = self._wait_for_end(run, watch, pod)
        except HostsLostError:
            self._replace(pod, run, watch)
        except HostError as error:
            if watch.are_lost():
                self._replace(pod, run, watch)
            else:
                self._handle_unreachable(pod, error)
        else:
            self._end(pod, run, watch, why)

    def _wait_for_end(self, run: RemoteRun, watch: SliceMonitor, pod: TpuSliceRequest) -> str:
        """Waits for the end of the run. Returns the reason if the keeper stopped it, else "".

        Raises HostsLostError, HostError.
        """
        while not run.is_over():
            self._unanswered.clear()
            self._unexpected.clear()
            self._trouble.clear()
            try:
                watch.poll(run)
            except OverTimeError:
                log(f"{over_time(pod)}: the run is stopped")
                stop_in_order(run)
                return over_time(pod)
            time.sleep(ASK_S)
        self._unanswered.clear()
        return ""

    def _handle_unreachable(self, pod: TpuSliceRequest, error: HostError) -> None:
        """Releases slices whose host has not answered for provider.unreachable_minutes.

        Past provider.max_hours, releases them immediately. Otherwise raises `error`.
        """
        minutes = pod.wanted.settings.unreachable_minutes
        if pod.is_over_time:
            self._give_up(pod, f"{over_time(pod)}, and it does not answer: {error}")
        elif self._unanswered.lasting_s() >= 60 * minutes:
            self._give_up(pod, f"the hosts have not answered for {minutes:g} minutes: {error}")
        else:
            raise error

    def _end(self, pod: TpuSliceRequest, run: RemoteRun, watch: SliceMonitor, why: str) -> None:
        """Copies the folder of a run that is over, and releases its slices.

        While the copy fails, the slices are kept for at most provider.autostop_minutes.
        """
        folder, minutes = Path(pod.note.run), pod.wanted.settings.autostop_minutes
        try:
            run.fetch(folder)
        except (HostError, OSError) as error:
            if watch.are_lost():
                self._replace(pod, run, watch)
                return
            if self._uncopied.lasting_s() < 60 * minutes:
                raise HostError(f"the run is over, and cannot be copied here: {error}") from None
            why = f"the run is over, and could not be copied for {minutes:g} minutes: {error}"
            self._give_up(pod, why)
            return
        if why:
            record_reason(folder, why)
        release(pod, read_status(folder).exit_code, log)

    def _give_up(self, pod: TpuSliceRequest, why: str) -> None:
        """Releases the slices; later actions only repeat that. Raises HostError."""
        self._why = why
        log(f"giving {pod.note.resource_id} back: {why}")
        give_up(pod, log, f"the slices were given back: {why}")

    def _replace(self, pod: TpuSliceRequest, run: RemoteRun, watch: SliceMonitor) -> None:
        """Continues the run on new slices, which have their own keeper."""
        self._lost, folder = run, Path(pod.note.run)
        watch.fetch(folder)
        pod.release()
        if Path(run.launched_in).is_dir():
            os.chdir(run.launched_in)
        options = LaunchOptions(detach=True, assume_yes=True)
        cluster_ref, cluster = pod.note.cluster_ref, pod.note.cluster
        remotely = RemoteSubmission(
            folder, cluster, Path(cluster_ref.name).stem, cluster_ref, options
        )
        remotely.has_begun = True
        try:
            with remotely.reporting():
                begin = RunRequest(load_job(folder / "job.yaml").value, None)
                SliceSubmission(remotely, losses=pod.note.losses).replaced(begin)
        except SlipwayError as error:
            print_error(error)

    def _report(self, error: Exception) -> None:
        """Logs an error and records it for `launch list`, `status` and `doctor`."""
        kind = "" if isinstance(error, HostError) else f"{type(error).__name__}: "
        log(f"{kind}{error}")
        self._trouble.add(f"{kind}{error}")

    def _wait(self) -> None:
        """Waits for RETRY_S, or until the slices are released."""
        wait_until(lambda: not is_recorded(self._folder), RETRY_S, poll_interval_s=POLL_INTERVAL_S)


def log(text: str) -> None:
    print(f"{time.ctime()}: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
