"""Writes a run's numbers and texts as event files for TensorBoard."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError, dump


class Board:
    """Writes `tensorboard/` in the run's folder; does nothing when the job does not enable it.

    Raises ConfigError when the library is missing. The file is created at the first write:
    TensorBoard then discards earlier records of the steps that this attempt repeats.
    """

    def __init__(self, job: Job, run_dir: Path):
        self._job, self._folder = job, run_dir / "tensorboard"
        self._writer: Any = None
        if job.tensorboard:
            _library()

    def numbers(self, step: int, fields: Mapping[str, Any]) -> None:
        """Writes those of the fields that are numbers."""
        if self._opened(step):
            from tensorboardX.summary import scalar

            numbers = {n: v for n, v in fields.items() if isinstance(v, (int, float))}
            for name, value in numbers.items():
                self._write(step, summary=scalar(name, value))
            self._writer.flush()

    def text(self, name: str, step: int, text: str) -> None:
        if self._opened(step):
            self._write_text(name, step, text)
            self._writer.flush()

    def close(self) -> None:
        if self._writer:
            self._writer.close()

    def _opened(self, step: int) -> bool:
        if self._writer is None and self._job.tensorboard:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._writer = _library()(str(self._folder / "events"))
            self._write(step, file_version="brain.Event:2")
            self._write(step, session_log={"status": "START"})
            self._write_text("job", step, dump(self._job))
        return self._writer is not None

    def _write_text(self, name: str, step: int, text: str) -> None:
        from tensorboardX.summary import text as summary_of

        # Indented: TensorBoard renders texts as Markdown.
        indented = "\n".join(f"    {line}" for line in text.splitlines())
        self._write(step, summary=summary_of(name, indented))

    def _write(self, step: int, **content: Any) -> None:
        from tensorboardX.proto import event_pb2

        event: Any = event_pb2
        self._writer.write_event(event.Event(wall_time=time.time(), step=step, **content))


def _library() -> Any:
    """Returns a writer that writes immediately: the library's usual one uses a thread."""
    try:
        from tensorboardX.event_file_writer import EventsWriter  # lazy: most jobs do not need it
    except ImportError:
        message = (
            "tensorboard: tensorboardX is not installed on this host. Install it with "
            "`uv sync --extra tensorboard`"
        )
        raise ConfigError([message]) from None
    return EventsWriter
