"""What a report reads of a run, made by hand."""

from pathlib import Path
from typing import Any

from launcher.core.events import AttemptEndedEvent
from launcher.core.states import RunState
from launcher.runs.goodput import goodput
from launcher.runs.run_record import RunRecord
from launcher.runs.state_file import RecordedState
from launcher.runs.status import RunStatus
from tests.support.run_builders import RunEvents, spans_of


def record_of(run: RunEvents | None = None, name: str = "small", **fields: Any) -> RunRecord:
    """The record of a finished run with these events; other fields are empty by default."""
    events = run.events if run else []
    folder = Path("runs") / name
    status = RunStatus(folder, RunState.FINISHED, False, RecordedState(), None, None, 0.0)
    empty = {"job": None, "job_text": "", "plans": {}, "history": [], "errors": []}
    empty |= {"slowdowns": [], "spikes": [], "compiled": [], "saves": 0}
    others = {"started": {}, "corpora": {}, "metrics": [], "samples": []}
    ends = [event for event in events if isinstance(event, AttemptEndedEvent)]
    made = {"status": status, "goodput": goodput(events), "spans": spans_of(events), "ends": ends}
    return RunRecord(**{**empty, **others, **made, **fields})
