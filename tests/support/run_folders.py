"""Run folders as a launcher and a trainer leave them."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.core.events import EVENT_TYPES
from launcher.core.states import RunState
from launcher.runs.directory import RunDir
from tests.support.launch_plans import small_launch
from trainer.contract.protocol.events import Event
from trainer.contract.protocol.wire import EventReader, to_wire


def make_run(folder: Path, name: str = "small", steps: int = 40) -> RunDir:
    """FOLDER/runs/NAME with its lock held: a run that is alive until it is closed."""
    launch = small_launch(folder)
    job = launch.job.model_copy(update={"name": name, "steps": steps})
    return RunDir.create(replace(launch, job=job, run_dir=folder / "runs" / name))


def add_steps(run: RunDir, *numbers: int, attempt: int = 1) -> None:
    """Lines of metrics, with a loss of 5.0 less a tenth of the step."""
    with (run.folder / "metrics.jsonl").open("a") as file:
        for number in numbers:
            line = {"step": number, "loss": 5.0 - number / 10, "attempt": attempt}
            file.write(json.dumps(line) + "\n")


def event_of(fields: dict[str, Any]) -> Event:
    """The event that a line with these fields is read as."""
    event = EventReader(EVENT_TYPES).from_wire(fields)
    assert event is not None
    return event


def add_events(run: RunDir, *events: Event | dict[str, Any], time: float = 1000.0) -> None:
    """Of attempt 1, unless they say another."""
    for event in events:
        fields = to_wire(event) if isinstance(event, Event) else event
        run.add_event(event_of({"time": time, "attempt": 1, **fields}))


def add_log(run: RunDir, host: int, content: bytes) -> None:
    with (run.folder / "logs" / f"host-{host:04d}.log").open("ab") as file:
        file.write(content)


def add_attempt(run: RunDir, hours: float, price: float | None = None) -> None:
    """An attempt that holds 8 chips for some hours, in the future: later than the run's events."""
    began = time.time() + 1000
    more = {} if price is None else {"price_per_chip_hour": price}
    started = {"event": "attempt_started", "hosts": 2, "chips": 8, **more}
    add_events(run, started, {"event": "state", "state": "starting"}, time=began)
    add_events(run, {"event": "state", "state": "finished"}, time=began + 3600 * hours)
    run.set_state(RunState.FINISHED)
