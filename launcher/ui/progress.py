"""The display of a run in progress: a live panel on a terminal, plain lines otherwise.

It receives the events and log lines that the gang forwards, and does not depend on Ray.
"""

import re
import statistics
import time
from collections import Counter, deque
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from launcher.core.events import (
    HangEvent,
    HostExcludedEvent,
    PreemptionNoticeEvent,
    StragglerEvent,
)
from launcher.core.formatting import format_seconds
from launcher.core.printable import coloured, plain
from launcher.core.results import AttemptResult
from launcher.planning.spec import AttemptInfo
from launcher.runs.folder import resume_command
from launcher.runs.history import LastCheckpoint
from launcher.ui.plan_view import describe_world, host_color
from trainer.contract.protocol.events import (
    CheckpointSavedEvent,
    CheckpointsDiscardedEvent,
    ErrorEvent,
    EvalEvent,
    Event,
    FinishedEvent,
    HeartbeatEvent,
    PhaseEvent,
    ProgressEvent,
    RestoredEvent,
    SaveFailedEvent,
    SaveProgressEvent,
    StepEvent,
    WarningEvent,
)
from trainer.contract.protocol.process_names import process_noun
from trainer.contract.records.metrics_file import curve

# Lines of hosts other than host 0 are shown when they match: words that programs use for trouble,
# and the first letter of glog's lines (W, E, F and a date).
TROUBLE = re.compile(
    r"(warn(ing)?|error|exception|traceback|fatal|critical)\b|^[WEF]\d{4} ", re.IGNORECASE
)
# Lines that libraries print when all is well; only the log files keep them.
CHATTER = re.compile(r"^\[Gloo\] Rank \d+ is connected")
ETA_STEPS = 20
"""Number of recent steps whose median time gives the remaining time."""
LINES_PER_SECOND = 50
"""Maximum number of lines shown per second, of all hosts together; the log files have all."""


STOPPING = "stopping: saving a checkpoint (second Ctrl-C ends immediately)"
STOPPING_UNSAVED = "stopping (second Ctrl-C ends immediately)"


class RunDisplay:
    """Shows one run. Use it as a context manager around the run."""

    def __init__(
        self,
        console: Console,
        launch: AttemptInfo,
        checkpoint: LastCheckpoint | None = None,
        elapsed_s: float = 0.0,
    ) -> None:
        self.checkpoint = checkpoint
        self.last_step: StepEvent | None = None
        self.first_loss: float | None = None
        self.finished: FinishedEvent | None = None
        """The end of process 0."""
        self.last_eval: EvalEvent | None = None
        self._console = console
        self._launch = launch
        self._status = "starting"
        self._stopping = ""
        self._save_failed: SaveFailedEvent | None = None
        self._saving, self._saving_step = "", 0
        self._written: dict[int, int] = {}
        """Bytes written in the current save, by process."""
        self._host_states: dict[int, str] = {}
        self._step_times_s: deque[float] = deque(maxlen=ETA_STEPS)
        self._budget = _LineBudget()
        self._began = time.monotonic() - elapsed_s
        self._live = Live(
            get_renderable=self._panel, console=console, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        else:
            self._print(f"{self._launch.job.name} on {describe_world(self._launch)}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._live.stop()

    def status(self, text: str) -> None:
        """Shows what the launcher itself is doing: provisioning, reserving, ..."""
        if text != self._status and not self._console.is_terminal:
            self._print(text)
        self._status = text

    def stopping(self, why: str = "") -> None:
        """Shows that the run is stopping. Later statuses do not replace this state in the panel."""
        if not self._stopping:
            how = STOPPING if self._launch.saves else STOPPING_UNSAVED
            self._stopping = f"{why}; {how}" if why else how
            self.status(self._stopping)

    def attempt(self, launch: AttemptInfo) -> None:
        """Shows the start of another attempt, which may have another number of hosts.

        Which checkpoint it continues from is known when its program has restored one.
        """
        self._launch = launch
        self._host_states.clear()
        self._print(f"attempt {launch.attempt} on {describe_world(launch)}", "bold")

    def attempt_ended(self, ending: AttemptResult) -> None:
        """Prints the reason of a failure, loss or resize, so that it remains visible afterwards."""
        why = ending.end_reason
        if why.is_failure or why.is_loss or why.is_restart:
            self._print(f"attempt {self._launch.attempt} ended: {ending.reason}", "bold yellow")

    def hosts_do(self, phases: Mapping[int, str]) -> None:
        """Sets the phases of hosts, by process, when their own events are not read."""
        self._host_states.update(phases)

    def on_event(self, event: Event) -> None:
        """Shows one event of the contract, from any host, without fields that the program omits."""
        process = event.process or 0
        match event:
            case StepEvent() if process == 0:
                self._on_step(event)
            case PhaseEvent(edge="begin"):
                self._host_states[process] = event.name
            case HeartbeatEvent():
                self._host_states[process] = event.phase or "starting"
            case ProgressEvent():
                self._status = f"{event.unit or 'data'}: {event.done:,} of {event.total:,}"
            case EvalEvent():
                self.last_eval = event
            case FinishedEvent():
                self._host_states[process] = "finished"
                self.finished = event if process == 0 else self.finished
            case SaveProgressEvent() | CheckpointSavedEvent() | SaveFailedEvent():
                self._on_save(process, event)
            case RestoredEvent() if process == 0:
                self._on_restored(event)
            case CheckpointsDiscardedEvent():
                self.checkpoint = LastCheckpoint(event.newest, None) if event.newest else None
            case _:
                self._print_report(process, event)

    def _print_report(self, process: int, event: Event) -> None:
        match event:
            case HangEvent():
                self._print(f"hang: {event.reason}", style="bold yellow")
            case StragglerEvent():
                self._print(f"warning: {event.message}", style="yellow")
            case HostExcludedEvent():
                self._print(str(event), style="yellow")
            case PreemptionNoticeEvent():
                self._print(f"{self._noun} {process} is about to be taken away: {event.message}")
            case WarningEvent():
                self._print(f"{self._noun} {process} warning: {event.message}", style="yellow")
            case ErrorEvent():
                self._print(f"{self._noun} {process} error: {event.message}", style="red")
            case _:
                pass

    def _on_step(self, event: StepEvent) -> None:
        if self.first_loss is None:
            self.first_loss = event.loss
        self.last_step = event
        if event.step_time_s is not None:
            self._step_times_s.append(event.step_time_s)
        self._status = "training"

    def _on_save(
        self, process: int, event: SaveProgressEvent | CheckpointSavedEvent | SaveFailedEvent
    ) -> None:
        """Shows a save once, although every host may report it."""
        if isinstance(event, SaveProgressEvent):
            self._on_save_progress(process, event)
            return
        self._saving = ""
        if isinstance(event, CheckpointSavedEvent):
            when = event.received or time.time()
            self.checkpoint, self._save_failed = LastCheckpoint(event.step, when), None
        elif self._save_failed is None or self._save_failed.step != event.step:
            self._save_failed = event
            self._print(_save_failure(event), style="bold red")

    def _on_save_progress(self, process: int, event: SaveProgressEvent) -> None:
        if event.step != self._saving_step:
            self._saving_step, self._written = event.step, {}
        self._written[process] = event.written
        done, total = min(sum(self._written.values()), event.total), event.total
        unit, size = ("GB", 1e9) if total >= 1e9 else ("MB", 1e6)
        self._saving = f"saving step {event.step}: {done / size:,.0f} of {total / size:,.0f} {unit}"

    def _on_restored(self, event: RestoredEvent) -> None:
        self._saving = ""
        if self.checkpoint is None or self.checkpoint.step != event.step:
            self.checkpoint = LastCheckpoint(event.step, None)
        if event.message is None:  # else the trainer prints it itself
            self._print(f"restored step {event.step}")

    def on_line(self, process: int, line: str) -> None:
        """Shows a line that a host's program printed: all of host 0, only trouble of the rest."""
        self._host_states.setdefault(process, "running")
        if (process != 0 and not TROUBLE.search(line)) or CHATTER.match(line):
            return
        if not self._budget.take():
            return
        prefix = Text(f"{self._noun} {process} ", style=host_color(process))
        self._console.print(prefix + Text.from_ansi(coloured(line[:2000])), soft_wrap=True)

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(Text(plain(text), style=style), soft_wrap=True)

    def _panel(self) -> RenderableType:
        simulated = " (simulated)" if self._launch.plan.world.simulated else ""
        elapsed = format_seconds(time.monotonic() - self._began)
        title = f"{self._launch.job.name} on {self._launch.cluster_name}{simulated}, {elapsed}"
        table = Table.grid(padding=(0, 2))
        if self.last_step:
            table.add_row("step", self._bar(self.last_step.step))
            table.add_row("", self._numbers(self.last_step))
        if self._launch.saves or self.checkpoint:
            table.add_row("", Text(f"checkpoint: {self.checkpoint or 'none yet'}"))
        if self._saving:
            table.add_row("", Text(self._saving))
        if self._save_failed:
            table.add_row("", Text(plain(_save_failure(self._save_failed)), style="bold red"))
        table.add_row("state", Text(plain(self._stopping or self._status)))
        table.add_row("hosts", Text(plain(self._hosts())))
        return Panel(table, title=title, title_align="left", border_style="dim")

    def _bar(self, step: int) -> RenderableType:
        steps = self._launch.steps
        if steps is None:
            return Text(f"{step}", style="bold")
        bar = Table.grid(padding=(0, 1))
        cells: list[RenderableType] = [ProgressBar(total=steps, completed=step, width=30)]
        cells.append(Text(f"{step}/{steps}", style="bold"))
        if self._step_times_s:
            remaining_s = (steps - step) * statistics.median(self._step_times_s)
            cells.append(Text(f"ETA {format_seconds(remaining_s)}", style="dim"))
        bar.add_row(*cells)
        return bar

    def _numbers(self, event: StepEvent) -> Text:
        parts: list[str] = []
        if event.loss is not None:
            parts.append(f"loss {event.loss:.4f}")
        if event.learning_rate is not None:
            parts.append(f"lr {event.learning_rate:.2e}")
        if event.tokens_per_s is not None:
            each = event.tokens_per_s / self._launch.plan.world.devices
            parts.append(f"{event.tokens_per_s:,.0f} tokens/s   {each:,.0f} a device")
        if event.data_wait_s is not None:
            parts.append(f"data wait {1000 * event.data_wait_s:.0f} ms")
        if event.mfu is not None:
            parts.append(f"MFU {100 * event.mfu:.1f} %")
        return Text("   ".join(parts))

    @property
    def _noun(self) -> str:
        return process_noun(self._launch.plan.world.processes_per_host)

    def _hosts(self) -> str:
        total = self._launch.plan.world.processes
        states = Counter(self._host_states.get(p, "waiting") for p in range(total))
        return ", ".join(f"{count} {state}" for state, count in states.most_common())


def print_summary(
    console: Console, launch: AttemptInfo, display: RunDisplay, seconds: float
) -> None:
    """Prints the end of a successful run: the loss, the run's folder and files, and a sample."""
    finished, last_eval = display.finished or FinishedEvent(), display.last_eval or EvalEvent()
    loss, first_loss = finished.loss, _first_loss(launch, display)
    line = Text("finished ", style="bold green")
    steps = f"{launch.steps} steps " if launch.steps else ""
    line.append(f"{steps}in {format_seconds(seconds)}", style="not bold default")
    if loss is not None and first_loss is not None:
        line.append(f", loss {first_loss:.4f} -> {loss:.4f}", style="not bold default")
    if last_eval.eval_loss is not None:
        line.append(f", held-out loss {last_eval.eval_loss:.4f}", style="not bold default")
    if last_eval.accuracy is not None:
        line.append(f", accuracy {last_eval.accuracy:.1%}", style="not bold default")
    if display.checkpoint:
        line.append(f", checkpoint of step {display.checkpoint.step}", style="not bold default")
    console.print(line, soft_wrap=True)
    if last_eval.tasks:
        metrics = ", ".join(f"{name} {value:.4g}" for name, value in last_eval.tasks.items())
        console.print(Text(plain(f"tasks: {metrics}")), soft_wrap=True)
    console.print(Text(f"written to {launch.run_dir}"), soft_wrap=True)
    files = sorted(path.name + "/" * path.is_dir() for path in launch.run_dir.iterdir())
    console.print(Text(f"  {', '.join(files)}", style="dim"), soft_wrap=True)
    if finished.sample is not None:
        console.print(Panel(Text(plain(finished.sample)), title="sample", title_align="left"))


def describe_stop(launch: AttemptInfo, display: RunDisplay) -> str:
    """Describes the position of a stopped run, and the command that continues it."""
    step, checkpoint = display.last_step and display.last_step.step, display.checkpoint
    again = f"continue with: {resume_command(launch.run_dir)}"
    if not (launch.saves or step or checkpoint):
        return f"stopped; {again}"
    where = f"at step {step}" if step else "before the first step"
    saved = f"checkpoint of step {checkpoint.step}" if checkpoint else "no checkpoint"
    return f"stopped {where}, {saved}; {again}"


def _save_failure(event: SaveFailedEvent) -> str:
    return f"saving step {event.step} failed: {event.message}"


def _first_loss(launch: AttemptInfo, display: RunDisplay) -> float | None:
    """Returns the first loss of the whole run, read from metrics.jsonl when possible."""
    try:
        lines = (launch.run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return display.first_loss
    losses = (line["loss"] for line in curve(lines) if "loss" in line)
    return next(losses, display.first_loss)


class _LineBudget:
    """Limits the lines on the terminal to LINES_PER_SECOND; the log files have all."""

    def __init__(self) -> None:
        self._second = 0
        self._used = 0

    def take(self) -> bool:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._used = second, 0
        self._used += 1
        return self._used <= LINES_PER_SECOND
