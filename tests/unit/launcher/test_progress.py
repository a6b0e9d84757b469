"""What a run shows while it happens, fed with the events and lines of a gang."""

import io
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from launcher.cluster.schema import ClusterRef, find_cluster
from launcher.core.formatting import format_seconds
from launcher.planning.planner import make_launch
from launcher.planning.spec import LaunchSpec
from launcher.ui.progress import LastCheckpoint, RunDisplay, describe_stop, print_summary
from tests.support.launch_plans import command_launch
from tests.support.run_builders import step
from tests.support.run_folders import event_of
from trainer.contract.config.job import Job
from trainer.contract.config.loader import load
from trainer.contract.protocol.events import (
    CheckpointSavedEvent,
    CheckpointsDiscardedEvent,
    EvalEvent,
    FinishedEvent,
    PhaseEvent,
    SaveFailedEvent,
    StepEvent,
    WarningEvent,
)

ROOT = Path(__file__).parents[3]


@pytest.fixture
def launch(tmp_path: Path) -> LaunchSpec:
    job = load(ROOT / "jobs" / "quickstart.yaml", Job)
    cluster = find_cluster(str(ROOT / "clusters" / "tpu-v4-32.yaml"))
    made = make_launch(job, cluster, tmp_path, ClusterRef(simulate=True))
    made.run_dir.mkdir()
    return made


def shown(launch: LaunchSpec, *, terminal: bool = False) -> tuple[RunDisplay, io.StringIO]:
    text = io.StringIO()
    console = Console(file=text, width=100, force_terminal=terminal, color_system=None)
    return RunDisplay(console, launch), text


def test_lines_of_the_first_host_are_all_shown(launch: LaunchSpec) -> None:
    display, text = shown(launch)
    with display:
        display.on_line(0, "hello")
    assert "host 0 hello" in text.getvalue()


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("all is well", False),
        ("UserWarning: something", True),
        ("Traceback (most recent call last):", True),
        ("E1120 12:00:00 coordination service", True),
        ("an errorless day", False),
    ],
)
def test_of_other_hosts_only_trouble_is_shown(launch: LaunchSpec, line: str, seen: bool) -> None:
    display, text = shown(launch)
    with display:
        display.on_line(3, line)
    assert (f"host 3 {line}" in text.getvalue()) is seen


def test_a_flood_of_lines_is_left_to_the_log_files(launch: LaunchSpec) -> None:
    display, text = shown(launch)
    with display:
        for number in range(10_000):
            display.on_line(0, f"line {number}")
    assert text.getvalue().count("line ") <= 200


def test_the_panel_shows_loss_rates_and_hosts(launch: LaunchSpec) -> None:
    display, text = shown(launch, terminal=True)
    with display:
        display.on_event(PhaseEvent(process=1, name="train", edge="begin"))
        display.on_event(step(3, mfu=0.415))
        display._live.refresh()
    panel = text.getvalue()
    for part in ("3/150", "loss 2.0000", "1,600 tokens/s", "100 a device", "MFU 41.5 %"):
        assert part in panel
    assert "1 train" in panel


def test_mfu_is_left_out_where_the_peak_is_not_known(launch: LaunchSpec) -> None:
    display, text = shown(launch, terminal=True)
    with display:
        display.on_event(step(3))
        display._live.refresh()
    assert "MFU" not in text.getvalue()


def test_without_a_terminal_there_are_plain_lines_only(launch: LaunchSpec) -> None:
    display, text = shown(launch)
    with display:
        display.status("reserving hosts")
        display.on_event(step(1))
    assert text.getvalue().splitlines()[-1] == "reserving hosts"
    assert "\x1b" not in text.getvalue()


def test_warnings_of_any_host_are_shown(launch: LaunchSpec) -> None:
    display, text = shown(launch)
    with display:
        display.on_event(WarningEvent(process=2, message="slow disk"))
    assert "host 2 warning: slow disk" in text.getvalue()


def test_the_summary_has_the_losses_the_folder_and_the_sample(launch: LaunchSpec) -> None:
    display, text = shown(launch)
    display.on_event(step(1))
    tasks = {"arc_easy/acc": 0.25, "lambada/perplexity": 1.5e6}
    display.on_event(EvalEvent(process=0, step=300, eval_loss=1.5, tasks=tasks))
    display.on_event(FinishedEvent(process=0, loss=1.25, sample="def f(): pass"))
    print_summary(display._console, launch, display, seconds=125.0)
    for part in ("in 2:05", "4.0000 -> 1.2500", "held-out loss 1.5000", "def f(): pass"):
        assert part in text.getvalue()
    assert "\ntasks: arc_easy/acc 0.25, lambada/perplexity 1.5e+06\n" in text.getvalue()
    assert str(launch.run_dir) in text.getvalue().replace("\n", "")


def test_the_panel_shows_the_last_good_checkpoint_and_a_save_that_failed(
    launch: LaunchSpec,
) -> None:
    display, text = shown(launch, terminal=True)

    def panel() -> str:
        text.truncate(0)
        display._live.refresh()
        return text.getvalue()

    with display:
        assert "checkpoint: none yet" in panel()
        display.on_event(CheckpointSavedEvent(process=0, step=100))
        assert "checkpoint: step 100, 0.0 s ago" in panel()
        display.on_event(SaveFailedEvent(process=0, step=200, message="disk full"))
        assert "saving step 200 failed: disk full" in panel()
        assert "checkpoint: step 100" in panel()
        display.on_event(CheckpointSavedEvent(process=0, step=300))
        assert "failed" not in panel()


def test_the_panel_shows_how_much_of_a_save_all_hosts_have_written(launch: LaunchSpec) -> None:
    display, text = shown(launch, terminal=True)
    about = {"event": "save_progress", "step": 40, "total": 800_000_000_000}
    display.on_event(event_of({**about, "process": 0, "written": 100_000_000_000}))
    display.on_event(event_of({**about, "process": 0, "written": 200_000_000_000}))
    display.on_event(event_of({**about, "process": 1, "written": 112_000_000_000}))
    display._console.print(display._panel())
    assert "saving step 40: 312 of 800 GB" in text.getvalue()
    text.truncate(0)
    display.on_event(CheckpointSavedEvent(process=0, step=40))
    display._console.print(display._panel())
    assert "saving step 40" not in text.getvalue()


def test_a_save_that_failed_on_every_host_is_printed_once(launch: LaunchSpec) -> None:
    display, text = shown(launch)
    with display:
        for process in (0, 1):
            event = {"event": "save_failed", "step": 200, "message": "disk full"}
            display.on_event(event_of({**event, "process": process}))
    assert text.getvalue().count("saving step 200 failed: disk full") == 1


def test_what_was_restored_is_the_last_checkpoint(launch: LaunchSpec) -> None:
    """Also where it is an older one than the newest that could be seen."""
    display, text = shown(launch)
    display.checkpoint = LastCheckpoint(400, 0.0)
    with display:
        for process in (0, 1):
            event = {"event": "restored", "step": 300, "examples": 9}
            display.on_event(event_of({**event, "process": process}))
    assert text.getvalue().count("restored step 300") == 1
    assert str(display.checkpoint) == "step 300"


@pytest.mark.parametrize("newest", [300, None])
def test_discarded_checkpoint_is_named_no_more(launch: LaunchSpec, newest: int | None) -> None:
    display, text = shown(launch)
    display.checkpoint = LastCheckpoint(400, 0.0)
    with display:
        display.on_event(CheckpointsDiscardedEvent(newest=newest))
        display.attempt(launch)
    assert "400" not in text.getvalue()
    assert display.checkpoint == (newest and LastCheckpoint(newest, None))


def test_stop_is_printed_once_and_stays_in_panel(launch: LaunchSpec) -> None:
    display, text = shown(launch)
    with display:
        for number in (1, 2):
            display.stopping()
            display.on_event(step(number))
    assert text.getvalue().count("stopping: saving a checkpoint (second Ctrl-C") == 1
    display, text = shown(launch, terminal=True)
    with display:
        display.stopping()
        display.on_event(step(3))
        display._live.refresh()
    assert "stopping: saving" in text.getvalue()


def test_a_stopped_run_says_where_it_stands_and_how_to_go_on(launch: LaunchSpec) -> None:
    display, _ = shown(launch)
    path = launch.run_dir
    again = f"continue with: launch resume {path}"
    expected = f"stopped before the first step, no checkpoint; {again}"
    assert describe_stop(launch, display) == expected
    display.on_event(step(7))
    display.on_event(CheckpointSavedEvent(process=0, step=7))
    expected = f"stopped at step 7, checkpoint of step 7; {again}"
    assert describe_stop(launch, display) == expected


def test_the_summary_of_a_resumed_run_begins_with_its_first_attempt(launch: LaunchSpec) -> None:
    (launch.run_dir / "metrics.jsonl").write_text('{"step": 1, "loss": 5.5, "attempt": 1}\n')
    display, text = shown(launch)
    display.on_event(step(200))
    display.on_event(CheckpointSavedEvent(process=0, step=300))
    display.on_event(FinishedEvent(process=0, loss=1.25))
    print_summary(display._console, launch, display, seconds=1.0)
    assert "5.5000 -> 1.2500, checkpoint of step 300" in text.getvalue()


def test_durations_read_as_people_write_them() -> None:
    assert [format_seconds(s) for s in (4.25, 309, 3909)] == ["4.2 s", "5:09", "1:05:09"]


FIELDS = st.sampled_from(
    ["step", "loss", "step_time_s", "tokens_per_s", "mfu", "eval_loss", "sample", "message"]
) | st.sampled_from(["name", "edge", "phase", "done", "total", "unit"])
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just([1])
EVENTS = st.sampled_from(
    ["step", "phase", "heartbeat", "progress", "eval", "finished", "warning", "error"]
) | st.sampled_from(["checkpoint_saved", "save_failed", "restored", "other"])


@given(st.lists(st.tuples(EVENTS, st.dictionaries(FIELDS, VALUES))), st.sampled_from([0, 1]))
def test_a_program_may_leave_out_or_mistake_any_field_of_an_event(
    said: list[tuple[str, dict[str, object]]], process: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        launch = command_launch(Path(folder))
        launch.run_dir.mkdir(parents=True)
        display, text = shown(launch, terminal=True)
        with display:
            for name, fields in said:
                display.on_event(event_of({**fields, "event": name, "process": process}))
                display._console.print(display._panel())
        print_summary(display._console, launch, display, 1.0)
    assert "finished in 1.0 s" in text.getvalue()
    assert "stopped" in describe_stop(launch, display)


def test_steps_of_a_program_that_sends_them_are_shown(tmp_path: Path) -> None:
    display, text = shown(command_launch(tmp_path))
    display.on_event(StepEvent(process=0, step=7, loss=0.5))
    display._console.print(display._panel())
    assert re.search(r"step +7", text.getvalue())
    assert "loss 0.5000" in text.getvalue()
    assert "checkpoint" not in text.getvalue()
