"""A run on slices of Cloud TPU: asked for, replaced when they are preempted, given back."""

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
from launcher.cluster import Ssh
from launcher.commands.remotely import Begin, HostsLostError, Remotely, Watch
from launcher.display import format_seconds
from launcher.exits import INTERRUPTED, OK
from launcher.providers.errors import ProviderError
from launcher.providers.gcp.pod import Pod, noted_pods
from launcher.providers.gcp.prices import cost_line, dollars_per_hour
from launcher.providers.ssh.connection import Host, hosts_of
from launcher.providers.ssh.everywhere import everywhere
from launcher.providers.ssh.remote_run import RemoteRun
from launcher.runs import Run, is_alive

KEEPER = "launcher.commands.keeper"
ASK_S, COPY_S = 10.0, 10.0
ANSWER_S, ANSWER_TIMEOUT_S, LOOK_S = 30.0, 300.0, 2.0
COPY_SHARE = 20
"""Copies take one part of so many of the time."""


class OnPods:
    """One run, on one pod after the other."""

    def __init__(self, remotely: Remotely, *, losses: int = 0) -> None:
        """`losses`: how often its hosts were preempted before."""
        self._remotely, self._tell, self._folder = remotely, remotely.tell, remotely.folder
        self._agreed = remotely.shown.agreed
        self._losses = losses

    def go(self, begin: Begin) -> int:
        """Returns the exit code of `launch`. Raises as `Remotely.go` does, but HostsLostError.

        Whatever ends this process, what it has asked for is given back: by a keeper, at last.
        """
        for folder, note in noted_pods():
            if note.run == str(self._folder) and note.stage == "kept":
                Pod(folder, note).give_back()
        while True:
            try:
                return self._on_one(begin)
            except HostsLostError:
                begin = self._after_loss(begin)

    def replaced(self, begin: Begin) -> int:
        """`go`, after a loss that another process has seen."""
        return self.go(self._after_loss(begin))

    def _after_loss(self, begin: Begin) -> Begin:
        """How it goes on. Raises ProviderError where it was lost too often."""
        self._losses += 1
        most = begin.job.retries.preemptions
        if most is not None and self._losses > most:
            raise ProviderError(f"the hosts were preempted (retries.preemptions: {most} is spent)")
        if not self._remotely.has_begun:
            return begin
        return replace(begin, text=None, overrides=(), fresh=False)

    def _on_one(self, begin: Begin) -> int:
        """Raises HostsLostError once a preempted pod is given back, and the run is here."""
        pod = self._asked()
        watch = PodWatch(pod)
        code = None
        try:
            code = self._use(self._there(pod), watch, begin)
            return code
        finally:
            if not self._remotely.is_there:  # else its keeper sees to the run and to it
                leave(pod, code, self._tell)

    def _use(self, settings: Ssh, watch: "PodWatch", begin: Begin) -> int:
        """Raises HostsLostError once the run is here."""
        try:
            return self._remotely.go(begin, settings, watch)
        except HostsLostError:
            pass
        except ProviderError:
            if not watch.are_lost():
                raise
        self._tell("the hosts were preempted: they are given back, and others are asked for")
        watch.bring_home(self._folder)
        self._remotely.is_there = False
        raise HostsLostError

    def _asked(self) -> Pod:
        """One that is written down, has its keeper, and is asked for."""
        remotely = self._remotely
        pod = Pod.of(remotely.cluster, remotely.words, self._folder, self._losses)
        self._tell(cost_line(pod.wanted))
        if not self._agreed and sys.stdin.isatty() and not Confirm.ask("go on?", default=False):
            raise KeyboardInterrupt
        self._agreed = True
        pod.note_it()
        pod.hold()
        start_keeper(pod.folder)
        self._tell(f"asking for {pod.note.resource_id}")
        pod.ask()
        return pod

    def _there(self, pod: Pod) -> Ssh:
        """Its hosts, once they are there. A run that has begun is seen to wait for them."""
        with self._waiting():
            settings = pod.wait(self._tell)
            self._tell("waiting for the hosts to let us in")
            wait_until_they_answer(hosts_of(settings))
            return settings

    def _waiting(self) -> AbstractContextManager[object]:
        if not self._losses or not self._remotely.has_begun or is_alive(self._folder):
            return nullcontext()
        run = Run.open(self._folder)
        run.set_state("waiting_for_hosts", reason="the hosts were preempted")
        return run


class PodWatch(Watch):
    """Asks whether the slices are still there, and copies the run's folder for the next ones."""

    takes_the_run_along = True

    def __init__(self, pod: Pod) -> None:
        self.copy = pod.folder / "copy"
        self._pod = pod
        self._ask_at = self._copy_at = 0.0

    def began(self) -> None:
        self._refuse_unwanted()
        self._pod.set("running")

    def look(self, run: RemoteRun) -> None:
        if time.monotonic() >= self._ask_at:
            if self.are_lost():
                raise HostsLostError
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

    def bring_home(self, folder: Path) -> None:
        """The run's folder as it was copied last: the run is here, and nobody runs it."""
        if self.copy.is_dir():
            shutil.copytree(self.copy, folder, dirs_exist_ok=True)
        if run := RemoteRun.read(folder):
            run.settle(folder)

    def _refuse_unwanted(self) -> None:
        if not self._pod.is_wanted:
            raise ProviderError("the hosts were given back by `launch down`")

    def take_copy(self, run: RemoteRun) -> None:
        """Whole, or as it was before."""
        new = self.copy.with_name("copy.new")
        shutil.rmtree(new, ignore_errors=True)
        with suppress(ProviderError):
            run.copy(new)
            shutil.rmtree(self.copy, ignore_errors=True)
            new.rename(self.copy)


def give_up(pod: Pod) -> None:
    """Whatever runs there; what it has come to is copied here."""
    pod.set("ending")
    watch, folder = PodWatch(pod), Path(pod.note.run)
    run = RemoteRun.read(folder)
    if run is not None and str(pod.folder) in (run.settings.config or ""):
        watch.take_copy(run)
        watch.bring_home(folder)
    pod.give_back()


def leave(pod: Pod, code: int | None, tell: Callable[[str], None]) -> None:
    """Give it back; or, after a run that failed, keep it for a while.

    `code`: what `launch` ends with; None: it did not come to a run.
    """
    minutes = pod.wanted.settings.autostop_minutes
    if code in (None, OK, INTERRUPTED) or not minutes:
        tell(f"giving {pod.note.resource_id} back")
        pod.give_back()
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


def _kept_line(pod: Pod, minutes: float) -> str:
    cost = dollars_per_hour(pod.wanted)
    money = f", about ${cost * minutes / 60:,.2f}" if cost is not None else ""
    shell = f"ssh -F {pod.folder}/ssh_config -i {pod.folder}/key -l {pod.wanted.user}"
    return (
        f"the hosts stay for {format_seconds(60 * minutes)}{money}, to look at them: {shell} HOST; "
        f"give them back now: launch down {pod.note.words.name}"
    )
