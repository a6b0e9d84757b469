"""A run on slices of Cloud TPU: asked for, replaced when they are preempted, given back."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from rich.prompt import Confirm

import launcher
from launcher.cluster.schema import Ssh
from launcher.core.errors import ProviderError
from launcher.core.exit_codes import INTERRUPTED, OK
from launcher.core.files import read_object, replace_file
from launcher.core.formatting import format_seconds
from launcher.executors.ssh import HostMonitor, HostsLostError, RunRequest, SshExecutor
from launcher.providers.gcp.pod import LATE, UNWANTED, TpuSliceRequest
from launcher.providers.gcp.prices import cost_line, dollars_per_hour, limit_line
from launcher.providers.gcp.slice_records import list_slices
from launcher.providers.ssh.connection import Host, hosts_of
from launcher.providers.ssh.parallel import everywhere
from launcher.providers.ssh.run_handle import RemoteRun
from launcher.runs.directory import REMOTE, RunDir, is_alive
from launcher.runs.remote import localize_copy

KEEPER = "launcher.executors.gcp_reclaimer"
ASK_S, COPY_S = 10.0, 10.0
ANSWER_S, ANSWER_TIMEOUT_S, LOOK_S = 30.0, 300.0, 2.0
COPY_SHARE = 20
"""Copies take one part of so many of the time."""
STOP_TIMEOUT_S = 600.0
"""For a checkpoint before hosts are given back."""


class GcpExecutor:
    """One run, on one pod after the other."""

    def __init__(self, remotely: SshExecutor, *, losses: int = 0) -> None:
        """`losses`: how often its hosts were preempted before."""
        self._remotely, self._tell, self._folder = remotely, remotely.tell, remotely.folder
        self._agreed = remotely.shown.assume_yes
        self._losses = losses

    def go(self, begin: RunRequest) -> int:
        """Returns the exit code of `launch`.

        Raises what `SshExecutor.submit` raises, except HostsLostError.

        Whatever ends this process, what it has asked for is given back: by a keeper, at last.
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
        """`go`, after a loss that another process has seen."""
        return self.go(self._after_loss(begin))

    def _after_loss(self, begin: RunRequest) -> RunRequest:
        """How it goes on. Raises ProviderError where it was lost too often."""
        self._losses += 1
        most = begin.job.retries.preemptions
        if most is not None and self._losses > most:
            raise ProviderError(f"the hosts were preempted (retries.preemptions: {most} is spent)")
        if not self._remotely.has_begun:
            return begin
        return replace(begin, text=None, overrides=(), fresh=False)

    def _run_on_slice(self, begin: RunRequest) -> int:
        """Raises HostsLostError once a preempted pod is given back, and the run is here."""
        pod = self._request()
        watch = SliceMonitor(pod)
        code = None
        try:
            code = self._drive(self._wait_ready(pod), watch, begin)
            return code
        finally:
            if not self._remotely.is_there:  # else its keeper sees to the run and to it
                release(pod, code, self._tell)

    def _drive(self, settings: Ssh, watch: "SliceMonitor", begin: RunRequest) -> int:
        """Raises HostsLostError once the run is here."""
        try:
            return self._remotely.submit(begin, settings, watch)
        except HostsLostError:
            pass
        except ProviderError:
            if not watch.are_lost():
                raise
        self._tell("the hosts were preempted: they are given back, and others are asked for")
        watch.fetch(self._folder)
        self._remotely.is_there = False
        raise HostsLostError

    def _request(self) -> TpuSliceRequest:
        """One that is written down, has its keeper, and is asked for."""
        remotely = self._remotely
        pod = TpuSliceRequest.of(remotely.cluster, remotely.words, self._folder, self._losses)
        self._tell(cost_line(pod.wanted))
        self._tell(limit_line(pod.wanted))
        if not self._agreed and sys.stdin.isatty() and not Confirm.ask("go on?", default=False):
            raise KeyboardInterrupt
        self._agreed = True
        pod.note_it()
        pod.hold()
        start_keeper(pod.folder)
        self._tell(f"asking for {pod.note.resource_id}")
        pod.ask()
        return pod

    def _wait_ready(self, pod: TpuSliceRequest) -> Ssh:
        """Its hosts, once they are there. A run that has begun is seen to wait for them."""
        with self._waiting():
            settings = pod.wait(self._tell)
            self._tell("waiting for the hosts to let us in")
            wait_until_they_answer(hosts_of(settings))
            return settings

    def _waiting(self) -> AbstractContextManager[object]:
        if not self._losses or not self._remotely.has_begun or is_alive(self._folder):
            return nullcontext()
        run = RunDir.open(self._folder)
        run.set_state("waiting_for_hosts", reason="the hosts were preempted")
        return run


class SliceMonitor(HostMonitor):
    """Asks whether the slices are still there, and copies the run's folder for the next ones."""

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
        """Raises ProviderError where they are meant to be gone."""
        self._refuse_unwanted()
        try:
            return self._pod.is_lost()
        except ProviderError:
            return False  # it cannot be asked now

    @property
    def last_copy(self) -> Path | None:
        """The newest whole copy of the run's folder."""
        return next((copy for copy in (self.copy, self._older) if copy.is_dir()), None)

    @property
    def _older(self) -> Path:
        return self.copy.with_name("copy.old")

    def fetch(self, folder: Path) -> None:
        """The run's folder as it was copied last: the run is here, and nobody runs it."""
        if copy := self.last_copy:
            shutil.copytree(copy, folder, dirs_exist_ok=True)
        try:
            run = RemoteRun.read(folder)
        except (ValueError, ProviderError):  # unreadable: the pod's note says the same
            note = self._pod.note
            localize_copy(folder, note.words, note.launched_in)
            return
        if run is not None:
            run.localize(folder)

    def _refuse_unwanted(self) -> None:
        if not self._pod.is_wanted:
            raise ProviderError(UNWANTED)

    def take_copy(self, run: RemoteRun) -> None:
        """Whole, or as it was before: at every moment `last_copy` is a whole one."""
        new = self.copy.with_name("copy.new")
        shutil.rmtree(new, ignore_errors=True)
        with suppress(ProviderError):
            run.copy(new)
            if self.copy.is_dir():
                shutil.rmtree(self._older, ignore_errors=True)
                self.copy.rename(self._older)
            new.rename(self.copy)
            shutil.rmtree(self._older, ignore_errors=True)


class OverTimeError(ProviderError):
    """Slices are held for longer than provider.max_hours."""


def over_time(pod: TpuSliceRequest) -> str:
    """The reason of an end, in words."""
    return f"{pod.note.resource_id} is held for provider.max_hours: {_max_hours(pod):g}"


def give_up(pod: TpuSliceRequest, tell: Callable[[str], None], why: str = "") -> bool:
    """Stop whatever runs there, copy it here as far as possible, and delete the slices.

    `why` becomes the run's reason. False: the slices may still appear, see `Pod.delete`. Raises
    ProviderError where slices are still held, or where they are gone and the copy stays behind.
    """
    with suppress(OSError):  # a full disk keeps no slices
        pod.set("ending")
    with pod.ending() as is_noted:
        if not is_noted:
            return True
        watch = SliceMonitor(pod)
        is_on_it = _save(pod, watch, tell)
        if not pod.delete():
            return False
        if is_on_it:
            _bring_home(watch, Path(pod.note.run), why)
        pod.forget()
        return True


def _save(pod: TpuSliceRequest, watch: SliceMonitor, tell: Callable[[str], None]) -> bool:
    """Stop and copy the run of a pod; whether the run is on this pod, as far as it is known."""
    folder = Path(pod.note.run)
    try:
        run = RemoteRun.read(folder)
    except (ValueError, ProviderError, OSError) as error:
        tell(f"warning: {folder / REMOTE} cannot be read: {' '.join(str(error).split())[:200]}")
        return True
    if run is None or str(pod.folder) not in (run.settings.config or ""):
        return False
    try:
        stop_in_order(run)
        watch.take_copy(run)
    except Exception as error:  # whatever it is, the slices go
        tell(f"warning: the run could not be stopped and copied: {error}")
    return True


def _bring_home(watch: SliceMonitor, folder: Path, why: str) -> None:
    """Raises ProviderError with where the copy is."""
    try:
        watch.fetch(folder)
        if why:
            add_to_state(folder, reason=why)
    except (OSError, shutil.Error) as error:
        raise ProviderError(
            f"the slices are gone, but the run's folder could not be copied to {folder}: {error}. "
            f"The last copy is in {watch.last_copy}"
        ) from None


def stop_in_order(run: RemoteRun) -> None:
    """Let it save a checkpoint and end, as `launch stop` does; waits for it."""
    with run.start("stop", terminal=False) as process:
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()


def add_to_state(folder: Path, **fields: object) -> None:
    """Add what `launch status` is to say of a run that nothing runs."""
    path = folder / "state.json"
    replace_file(path, json.dumps({**read_object(path), **fields}))


def release(pod: TpuSliceRequest, code: int | None, tell: Callable[[str], None]) -> None:
    """Give it back; or, after a run that failed, keep it for a while.

    `code`: what `launch` ends with; None: it did not come to a run.
    """
    minutes = pod.wanted.settings.autostop_minutes
    if code in (None, OK, INTERRUPTED) or not minutes:
        tell(f"giving {pod.note.resource_id} back")
        if not pod.release():
            tell(f"the API has not shown {pod.note.resource_id} yet: {LATE}")
        return
    pod.set("kept", time.time() + 60 * minutes)
    tell(_kept_line(pod, minutes))


def wait_until_they_answer(hosts: Sequence[Host]) -> None:
    """A slice is ready before its hosts have made their user.

    Raises ProviderError with those that do not let us in within five minutes.
    """
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    while True:
        try:
            everywhere(hosts, lambda number: hosts[number].run("true", ANSWER_S))
            return
        except ProviderError:
            if time.monotonic() > deadline:
                raise
            time.sleep(LOOK_S)


def start_keeper(pod: Path) -> None:
    """A process that no terminal ends: it gives the pod back once nobody else looks after it."""
    package = Path(launcher.__file__).parents[1]
    paths = [str(package), os.environ.get("PYTHONPATH", "")]
    with (pod / "keeper.log").open("ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", KEEPER, str(pod)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
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
