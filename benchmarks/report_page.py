"""Measures the report of a long run: how long it takes to write and to open, and its size.

    uv run --group docs python benchmarks/report_page.py [--steps 100000]

Opens the page in headless Chromium at the width of a desktop, by default three times. The time of a
page is from its request to the end of its `load` event, when the charts are drawn.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from launcher.core.states import RunState
from launcher.report.page import report
from launcher.runs.run_record import read_record
from tests.support.browser import WIDTHS, chromium, resize
from tests.support.run_folders import make_run

METRICS = ("loss", "grad_norm", "learning_rate", "step_time_s", "tokens_per_s", "mfu")
STEP_S = 0.5
BEGIN_S = 1.8e9
LOAD = "const t = performance.getEntriesByType('navigation')[0]; return t.loadEventEnd / 1000"


def main() -> None:
    parser = argparse.ArgumentParser(description="Time and size of the report of a long run.")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        page = _write(_make_run(Path(folder), options.steps))
        with chromium() as browser:
            resize(browser, WIDTHS["desktop"])
            opened = [_open(browser, page) for _ in range(options.rounds)]
    print(f"opened in {statistics.median(opened):.2f} s ({min(opened):.2f} to {max(opened):.2f})")


def _make_run(folder: Path, steps: int) -> Path:
    """Returns the folder of a run with that many steps, and an evaluation every 100 steps."""
    with make_run(folder, steps=steps) as run:
        run.set_state(RunState.RUNNING)
        run.set_state(RunState.FINISHED)
    metrics = (run.folder / "metrics.jsonl").open("w")
    events = (run.folder / "events.jsonl").open("w")
    with metrics, events:
        _add(events, event="state", state="running", time=BEGIN_S)
        for step in range(1, steps + 1):
            now = BEGIN_S + STEP_S * step
            values = dict.fromkeys(METRICS, 1 + step * 7919 % 1009 / (1009 + step))
            _add(metrics, step=step, **values, data_wait_s=0.001)
            _add(events, event="step", process=0, step=step, **values, time=now, received=now)
            if step % 100 == 0:
                _add(metrics, step=step, eval_loss=1.5)
        _add(events, event="state", state="finished", time=BEGIN_S + STEP_S * steps)
    return run.folder


def _add(file: Any, **fields: Any) -> None:
    file.write(json.dumps({"attempt": 1, **fields}) + "\n")


def _write(folder: Path) -> Path:
    began = time.monotonic()
    html = report([read_record(folder)], time.time())
    took_s = time.monotonic() - began
    page = folder / "report.html"
    page.write_text(html)
    print(f"written in {took_s:.1f} s, {page.stat().st_size / 1e6:.2f} MB")
    return page


def _open(browser: Any, page: Path) -> float:
    """Returns the seconds until the page is loaded and its charts are drawn."""
    browser.get(f"file://{page}")
    return browser.execute_script(LOAD)


if __name__ == "__main__":
    main()
