"""Writes a run's numbers and texts to Weights & Biases."""

import importlib
import importlib.util
import os
import threading
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from trainer.contract.config.job import Job, Wandb
from trainer.contract.config.loader import ConfigError
from trainer.contract.storage.cache_dirs import run_id

INIT_TIMEOUT_S = 15.0
FINISH_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 20.0
"""Longer than each of the above, so that a run shorter than the first is still written."""
FLUSH_EVERY_S = 2.0
Print = Callable[[str], None]


class WandbRun:
    """One W&B run for all attempts of a run, with its files in `wandb/` of the run's folder.

    Raises ConfigError when the library is missing. A separate thread sends to W&B, so that no step
    waits for the network. Without a network the run is written offline. An error ends the writing
    with a warning. Steps that a later attempt repeats appear twice, with the same numbers.
    """

    def __init__(self, job: Job, wandb: Wandb, run_dir: Path, print_line: Print, warn: Print):
        if importlib.util.find_spec("wandb") is None:
            raise ConfigError(
                [
                    "wandb: the library is not installed on this host. Install it with "
                    "`uv sync --extra wandb`"
                ]
            )
        self._job, self._wandb, self._run_dir = job, wandb, run_dir
        self._print_line, self._warn = print_line, warn
        self._lines: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="wandb", daemon=True)

    def numbers(self, step: int, fields: Mapping[str, Any]) -> None:
        """Writes those of the fields that are numbers."""
        numbers = {n: v for n, v in fields.items() if isinstance(v, (int, float))}
        self._put({"step": step, **numbers})

    def text(self, name: str, step: int, text: str) -> None:
        self._put({"step": step, name: text})

    def close(self) -> None:
        """Waits up to CLOSE_TIMEOUT_S for pending writes; the rest stays in the run's folder."""
        if self._thread.is_alive():
            self._lines.put(None)
            self._thread.join(CLOSE_TIMEOUT_S)

    def _put(self, line: dict[str, Any]) -> None:
        if self._thread.ident is None:
            self._thread.start()
        self._lines.put(line)

    def _write(self) -> None:
        try:
            run = self._begin()
            offline = f"offline; upload it with `wandb sync {Path(run.dir).parent}`"
            self._print_line(f"W&B: {run.url or offline}")
            while (line := self._lines.get()) is not None:
                run.log({name: _shown(value) for name, value in line.items()})
            run.finish()
            _end_service()
        except Exception as error:  # from W&B's library, server or account: training continues
            self._warn(f"logging to W&B has ended: {error}")

    def _begin(self) -> Any:
        wandb = _library()
        try:
            run = self._init(self._wandb.mode)
        except wandb.Error as error:
            self._warn(f"cannot reach W&B, logging offline: {error}")
            _end_service()  # it considers the run's id in use
            run = self._init("offline")
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
        return run

    def _init(self, mode: str) -> Any:
        wandb = _library()
        settings = wandb.Settings(
            init_timeout=INIT_TIMEOUT_S,
            finish_timeout=FINISH_TIMEOUT_S,
            x_transaction_log_flush_interval=FLUSH_EVERY_S,
            x_disable_stats=True,
            disable_git=True,
            save_code=False,
            console="off",
            silent=True,
        )
        return wandb.init(
            project=self._wandb.project,
            name=self._wandb.name or self._job.name,
            id=run_id(self._run_dir),
            resume="allow",
            mode=mode,
            dir=os.fspath(self._run_dir),
            config=self._job.model_dump(mode="json"),
            allow_val_change=True,
            settings=settings,
        )


def _end_service() -> None:
    """Ends W&B's own process, which writes the files: they are then complete."""
    _library().teardown()


def _shown(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return _library().Html(f"<pre>{escape(value)}</pre>", inject=False)


def _library() -> Any:
    """Imports W&B lazily: the import takes a second, and most jobs do not need it."""
    return importlib.import_module("wandb")
