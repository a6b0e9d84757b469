"""The report of a run in headless Chromium: widths, light and dark, charts, and no request."""

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.core.states import RunState
from launcher.report.page import report
from launcher.runs.live import read_goodput
from launcher.runs.run_record import read_record
from tests.support.browser import (
    SCHEMES,
    WIDTHS,
    console,
    has_scheme,
    is_too_wide,
    requests,
    resize,
    use_scheme,
)
from tests.support.run_builders import RunEvents
from tests.support.run_folders import add_log, make_run

pytestmark = pytest.mark.docs

METRICS = ("loss", "grad_norm", "learning_rate", "step_time_s", "tokens_per_s", "data_wait_s")
LONG_LINE = "a_word_without_spaces_" * 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with a crash, a repetition, a hang at the end, and long texts."""
    folder = tmp_path_factory.mktemp("report")
    events = RunEvents().training().steps(1, 100, 0.5).ended("crash").state("backing_off").after(9)
    events.next_attempt().training().steps(51, 200, 0.5).phase("evaluate", 4).ended("hang")
    with make_run(folder, steps=200) as run:
        add_log(run, 0, f"{LONG_LINE}\n".encode() * 50)
        run.set_state(RunState.FAILED, reason=f"host-0000 is behind: {LONG_LINE}")
    lines = (json.dumps(line) + "\n" for line in events.lines)
    (run.folder / "events.jsonl").write_text("".join(lines))
    with (run.folder / "metrics.jsonl").open("w") as file:
        for step in range(1, 201):
            values = dict.fromkeys(METRICS, 1 / step)
            file.write(json.dumps({"step": step, "attempt": 1, **values}) + "\n")
    sample = {"step": 100, "text": LONG_LINE, "attempt": 1}
    (run.folder / "samples.jsonl").write_text(json.dumps(sample) + "\n")
    return run.folder


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    """The address of the run's report."""
    path = folder / "report.html"
    path.write_text(report([read_record(folder)], now=0.0))
    return f"file://{path}"


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_report_does_not_scroll_sideways(browser: Any, page: str, width: int) -> None:
    resize(browser, width)
    browser.get(page)
    assert not is_too_wide(browser)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_report_follows_the_scheme(browser: Any, page: str, scheme: str) -> None:
    use_scheme(browser, scheme)
    browser.get(page)
    assert has_scheme(browser, scheme)


def test_report_requests_nothing_and_logs_no_error(browser: Any, page: str) -> None:
    browser.get("about:blank")
    requests(browser)
    console(browser)
    browser.get(page)
    assert requests(browser) == [page]
    assert console(browser) == []


def test_each_chart_is_drawn_with_the_last_values(browser: Any, page: str) -> None:
    browser.get(page)
    found = browser.execute_script(
        "return [...document.querySelectorAll('.chart')].map(chart => "
        "[chart.querySelectorAll('canvas').length, chart.querySelector('.u-legend').innerText])"
    )
    assert len(found) == len(METRICS)
    assert all(canvases == 1 and "200" in legend for canvases, legend in found)


def test_page_s_sums_are_those_of_the_goodput(browser: Any, page: str, folder: Path) -> None:
    browser.get(page)
    values = "return [...document.querySelectorAll('.goodput data')].map(data => +data.value)"
    *parts, wall_s = browser.execute_script(values)
    found = read_goodput(folder, is_alive=False)
    assert parts == pytest.approx([seconds for seconds in found.seconds.values() if seconds])
    assert sum(parts) == pytest.approx(wall_s) == found.wall_s


def test_long_outputs_can_be_reached_with_the_keyboard(browser: Any, page: str) -> None:
    browser.get(page)
    unreachable = "return document.querySelectorAll('pre:not([tabindex])').length"
    assert browser.execute_script(unreachable) == 0
