"""Displays a run of another process, from the files in the run's folder."""

import time
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path

from rich.console import Console
from rich.text import Text

from launcher.core.errors import InterruptError, error_of
from launcher.core.events import AttemptEndedEvent, StateEvent, parse_event
from launcher.core.exit_codes import OK
from launcher.core.results import AttemptResult
from launcher.core.states import RunState
from launcher.executors.options import LaunchOptions
from launcher.host.log_reader import Lines, LogFile
from launcher.planning.spec import AttemptInfo
from launcher.runs import live, summary
from launcher.runs.folder import RunFolderError, is_alive, run_word
from launcher.runs.host_logs import FOLLOWED_TAIL, POLL_INTERVAL_S, HostLogs
from launcher.runs.status import RunStatus, describe, read_status
from launcher.ui.progress import RunDisplay, print_summary
from trainer.contract.config.command import CommandJob, load_job
from trainer.contract.config.loader import ConfigError
from trainer.contract.planning.plan import BasePlan, Plan
from trainer.contract.protocol.events import Event

NEWEST_EVENTS = 2000
"""Past events that are replayed. The checkpoint and earlier attempts come from the summary."""


def follow_run(folder: Path, options: LaunchOptions, tail: int = FOLLOWED_TAIL) -> RunStatus:
    """Displays a run of another process until it ends, and returns its last status.

    `tail`: past lines to print per host.

    Raises RunFolderError when the run's job, plan or lock cannot be read, the error that
    `launch run` ends with when the run does not finish, and InterruptError after Ctrl-C: the
    command detaches, and the run continues.
    """
    console, found = options.console, read_status(folder)
    if not found.is_alive:
        console.print(Text(f"not running: {describe(found)}"), soft_wrap=True)
        return found
    attached = _Attached(found, console, tail)
    try:
        attached.follow()
    except KeyboardInterrupt:
        raise detached(folder) from None
    found = read_status(folder)
    if found.exit_code != OK:
        raise error_of(found.exit_code, describe(found), run_dir=folder)
    if found.state is not RunState.QUEUED:
        print_summary(console, attached.planned, attached.display, attached.elapsed_s)
    return found


def detached(folder: Path) -> InterruptError:
    """Returns the error after Ctrl-C in a command that only follows a run."""
    return InterruptError(
        f"detached: {folder.name} continues",
        hint=f"Stop it, with a checkpoint: launch stop {run_word(folder)}",
        run_dir=folder,
    )


def print_follow_hints(console: Console, folder: Path, where: str) -> None:
    """Prints where a run is, and the commands that follow, query and stop it."""
    word = run_word(folder)
    console.print(Text(where), soft_wrap=True)
    for what, command in (
        ("follow it", f"launch attach {word}"),
        ("follow its hosts' output", f"launch logs {word} -f"),
        ("show its status", f"launch status {word}"),
        ("stop it, with a checkpoint", f"launch stop {word}"),
    ):
        console.print(Text(f"  {what:28}{command}"), soft_wrap=True)


def new_events(folder: Path) -> Iterator[Event]:
    """Yields the events of a run, the past ones first, until no process runs it."""
    with closing(_events(folder / "events.jsonl", newest=None)) as events:
        while True:
            alive = is_alive(folder)  # before the reads, so that no last event is missed
            while event := next(events):
                yield event
            if not alive:
                return
            time.sleep(POLL_INTERVAL_S)


def new_lines(folder: Path, host: int | None) -> Iterator[str]:
    """Yields the output of one host, or of all with their names, until no process runs the run."""
    logs = HostLogs(folder, None, host)
    lines: list[str] = []

    def add(process: int, line: str) -> None:
        lines.append(line if host is not None else f"{logs.noun} {process} {line}")

    with closing(logs):
        while True:
            alive = is_alive(folder)
            found = logs.read(add)
            if not found and not alive:
                logs.finish(add)
            yield from lines
            lines.clear()
            if not found and not alive:
                return
            if not found:
                time.sleep(POLL_INTERVAL_S)


class _Attached:
    """A display of a run, updated with events and log lines as they are written."""

    def __init__(self, found: RunStatus, console: Console, tail: int) -> None:
        self._folder, self._attempt = found.folder, found.attempt or 1
        self.planned = _planned(found.folder, self._attempt)
        self._began = _plan_path(found.folder, self._attempt).stat().st_mtime
        self.display = RunDisplay(console, self.planned, elapsed_s=self.elapsed_s)
        self._earlier = summary.read(found.folder).history
        self.display.checkpoint = self._earlier.checkpoint
        self._events = _events(found.folder / "events.jsonl")
        self._logs = HostLogs(found.folder, tail)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start of the attempt that was current when this command started."""
        return time.time() - self._began

    def follow(self) -> None:
        """Updates the display until no process runs the run and all of its output is shown."""
        with self.display:
            while True:
                alive = is_alive(self._folder)  # before the reads, so that no last event is missed
                found = False
                while event := next(self._events):
                    found = True
                    self._on_event(event)
                self.display.hosts_do(live.read(self._folder).phases)
                found = self._logs.read(self.display.on_line) or found
                if not found and not alive:
                    return
                if not found:
                    time.sleep(POLL_INTERVAL_S)

    def _on_event(self, event: Event) -> None:
        attempt = event.attempt or self._attempt
        if attempt < self._attempt:
            self._earlier.add(event)
            self.display.checkpoint = self._earlier.checkpoint
            return
        if attempt > self._attempt:
            self._attempt, self.planned = attempt, _planned(self._folder, attempt)
            self.display.attempt(self.planned)
        match event:
            case StateEvent():
                self.display.status(_status(event))
            case AttemptEndedEvent():
                self.display.attempt_ended(AttemptResult(event.end_reason, event.reason))
            case _:
                self.display.on_event(event)


def _events(path: Path, newest: int | None = NEWEST_EVENTS) -> Generator[Event | None]:
    """Yields the newest past events, then each new one; None while there is no new event.

    `newest`: the number of past events; None for all.
    """
    log, lines = LogFile(path, newest), Lines()
    with closing(log):
        while True:
            while chunk := log.read():
                yield from filter(None, map(parse_event, lines.add(chunk)))
            yield None


def _planned(folder: Path, attempt: int) -> AttemptInfo:
    """Reads an attempt from the run's folder. Raises RunFolderError when that fails."""
    try:
        job = load_job(folder / "job.yaml").value
        kind = BasePlan if isinstance(job, CommandJob) else Plan
        plan = kind.model_validate_json(_plan_path(folder, attempt).read_text(encoding="utf-8"))
    except (OSError, ValueError, ConfigError) as error:
        raise RunFolderError(f"{folder}: attempt {attempt} cannot be read: {error}") from None
    name = read_status(folder).cluster_name
    return AttemptInfo(job=job, cluster_name=name, plan=plan, run_dir=folder, attempt=attempt)


def _plan_path(folder: Path, attempt: int) -> Path:
    return folder / "plans" / f"{attempt:04d}.json"


def _status(event: StateEvent) -> str:
    state = event.state.replace("_", " ")
    return f"{state}: {event.reason}" if event.reason else state
