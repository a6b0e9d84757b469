"""`launch report`: what the page of a run shows, and which files the command writes."""

import json
import re
import threading
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from launcher.commands import report as command
from launcher.commands.report import ReportOptions, report_runs
from launcher.core.states import RunState
from launcher.report.page import report
from launcher.runs.directory import RunDir
from launcher.runs.run_record import read_record
from tests.support.cli import launch, status_as_json
from tests.support.processes import wait_until
from tests.support.run_builders import RunEvents
from tests.support.run_folders import add_events, add_log, add_steps, make_run

LIVE = 'http-equiv="refresh"'
EVIL = "</script><script>alert('it')</script><img src=x onerror=alert(1)>"


class Page(HTMLParser):
    """The elements of a page that are looked at."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.values: list[float] = []
        """Values of the `data` elements: the seconds of the parts, and the wall time."""
        self.headings: list[int] = []
        self.labels: list[str] = []
        """Labels of charts and drawings for readers who do not see them."""
        self.links: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        self.values += [float(found.get("value") or 0)] * (tag == "data")
        self.headings += [int(tag[1])] if re.fullmatch(r"h[1-6]", tag) else []
        self.labels += [found.get("aria-label") or ""] * (found.get("role") == "img")
        self.links += [str(found.get("href"))] * (tag == "a")

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(*folders: Path) -> Page:
    return Page(report([read_record(folder) for folder in folders], now=0.0))


def chart_data(html: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert found
    return json.loads(found[1])


def lines_of(html: str, title: str) -> list[dict]:
    charts = chart_data(html)["charts"].values()
    return next(chart["lines"] for chart in charts if chart["title"] == title)


def make_finished(folder: Path, name: str = "small", steps: int = 3) -> Path:
    with make_run(folder, name, steps=steps) as run:
        run.set_state(RunState.RUNNING)
        add_steps(run, *range(1, steps + 1))
        run.set_state(RunState.FINISHED)
    return run.folder


def write_events(run: RunDir, events: RunEvents) -> None:
    """Writes events with their own times, instead of those that the run has recorded."""
    lines = (json.dumps(line) + "\n" for line in events.lines)
    (run.folder / "events.jsonl").write_text("".join(lines))


def test_report_of_a_run_is_in_its_folder(tmp_path: Path) -> None:
    folder = make_finished(tmp_path)
    done = launch(tmp_path, "report", "small")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{folder / 'report.html'}\n"
    assert Page((folder / "report.html").read_text()).headings[0] == 1


def test_curve_shows_each_step_once(tmp_path: Path) -> None:
    with make_run(tmp_path) as run:
        add_steps(run, 1, 2, 3)
        add_steps(run, 2, 3, 4, attempt=2)
    (line,) = lines_of(report([read_record(run.folder)], now=0.0), "Loss")
    assert line["data"] == [[1, 2, 3, 4], [4.9, 4.8, 4.7, 4.6]]


def test_sums_of_the_parts_are_those_of_status(tmp_path: Path) -> None:
    events = RunEvents().training().steps(1, 10, 0.7, data_wait_s=0.1).ended("crash")
    events.state("backing_off").after(3).next_attempt().training().steps(6, 12).finished()
    with make_run(tmp_path) as run:
        run.set_state(RunState.FINISHED)
    write_events(run, events)
    goodput = status_as_json(tmp_path)["goodput"]
    parts = [seconds for seconds in goodput["parts_s"].values() if seconds > 0]
    assert page_of(run.folder).values == pytest.approx([*parts, goodput["wall_s"]])


def test_cause_of_a_failed_run_comes_first_with_the_last_lines(tmp_path: Path) -> None:
    ended = {"event": "attempt_ended", "end_reason": "crash", "reason": "host-0001 exited"}
    with make_run(tmp_path) as run:
        add_steps(run, 1)
        add_log(run, 0, b"a line of host 0\n")
        add_log(run, 1, b"Traceback (most recent call last):\nValueError: no such thing\n")
        add_events(run, ended | {"process": 1})
        run.set_state(RunState.FAILED, reason="host-0001 exited with code 1")
    text = page_of(run.folder).text
    order = ["Why small ended", "host-0001 exited with code 1", "stacks of host 1"]
    order += ["ValueError: no such thing", "stacks of host 0", "a line of host 0", "Learning"]
    places = [text.index(each) for each in order]
    assert places == sorted(places)


def test_error_that_a_program_reported_is_shown(tmp_path: Path) -> None:
    with make_run(tmp_path) as run:
        add_events(run, {"event": "error", "process": 0, "message": "ValueError: of the program"})
        run.set_state(RunState.FAILED, reason="host-0000 exited with code 1")
    assert "ValueError: of the program" in page_of(run.folder).text


def test_finished_run_has_no_cause(tmp_path: Path) -> None:
    assert "ended" not in page_of(make_finished(tmp_path)).text


def test_text_of_a_run_cannot_become_html(tmp_path: Path) -> None:
    with make_run(tmp_path) as run:
        add_steps(run, 1)
        add_log(run, 0, EVIL.encode())
        add_events(run, {"event": "error", "process": 0, "message": EVIL})
        add_events(run, {"event": "started", "process": 0, "versions": {EVIL: EVIL}})
        run.set_state(RunState.FAILED, reason=EVIL)
    (run.folder / "samples.jsonl").write_text(json.dumps({"step": 1, "text": EVIL}) + "\n")
    (run.folder / "job.yaml").write_text(f"name: '{EVIL}'")
    evil = run.folder.rename(run.folder.with_name("<script>alert(1)<"))
    clean = page_of(make_finished(tmp_path, "clean"))
    page = page_of(evil)
    assert page.tags.count("script") == clean.tags.count("script")
    assert "img" not in page.tags
    assert page.text.count(EVIL) >= 4


def test_report_names_no_other_file_and_no_server(tmp_path: Path) -> None:
    html = report([read_record(make_finished(tmp_path))], now=0.0)
    loads = re.findall(r'(?:src|href)="(?!#|data:)[^"]*"|url\([^)]*\)|@import[^;]*', html)
    assert loads == []


def test_report_of_100_000_steps_is_below_2_mb(tmp_path: Path) -> None:
    with make_run(tmp_path, steps=100_000) as run:
        pass
    fields = {"learning_rate": 1e-3, "tokens": 10**9, "mfu": 0.4, "epoch": 0, "attempt": 1}
    names = ("loss", "grad_norm", "step_time_s", "tokens_per_s", "data_wait_s")
    with (run.folder / "metrics.jsonl").open("w") as file:
        for step in range(1, 100_001):
            values = dict.fromkeys(names, 1 + (step * 7919 % 1009) / 1009)
            file.write(json.dumps({"step": step, **values, **fields}) + "\n")
    html = report([read_record(run.folder)] * 5, now=0.0)
    assert len(html.encode()) < 2_000_000
    steps = lines_of(html, "Loss")[0]["data"][0]
    assert (steps[0], steps[-1]) == (1, 100_000)


def test_several_runs_share_their_charts(tmp_path: Path) -> None:
    make_finished(tmp_path, "first")
    make_finished(tmp_path, "second")
    done = launch(tmp_path, "report", "first", "second", "-o", "json")
    found = json.loads(done.stdout)
    assert found["report"] == "runs/report.html"
    assert (found["runs"], found["live"]) == (["first", "second"], False)
    html = (tmp_path / "runs" / "report.html").read_text()
    assert found["bytes"] == len(html.encode())
    assert [line["label"] for line in lines_of(html, "Loss")] == [
        "first: training", "second: training"
    ]  # fmt: skip


def test_headings_are_in_order_and_charts_have_labels(tmp_path: Path) -> None:
    folders = [make_finished(tmp_path, "first"), make_finished(tmp_path, "second")]
    for page in (page_of(folders[0]), page_of(*folders)):
        levels = page.headings
        assert levels[0] == 1 and levels.count(1) == 1
        assert all(later <= earlier + 1 for earlier, later in pairwise(levels))
        assert page.labels and all(page.labels)


def test_program_without_metrics_shows_the_steps_of_its_events(tmp_path: Path) -> None:
    with make_run(tmp_path) as run:
        step = {"event": "step", "process": 0, "step_time_s": 0.5}
        add_events(run, step | {"step": 1, "loss": 3.0}, step | {"step": 2, "loss": 2.0})
    (line,) = lines_of(report([read_record(run.folder)], now=0.0), "Loss")
    assert line["data"] == [[1, 2], [3, 2]]


def test_run_without_any_step_has_a_report(tmp_path: Path) -> None:
    with make_run(tmp_path) as run:
        run.set_state(RunState.FAILED, reason="no hosts")
    assert "no hosts" in page_of(run.folder).text


def test_damaged_files_are_left_out(tmp_path: Path) -> None:
    folder = make_finished(tmp_path)
    for name in ("job.yaml", "plans/0001.json", "samples.jsonl"):
        (folder / name).write_text("{damaged")
    assert "3/3" in page_of(folder).text


def test_another_file_is_not_replaced(tmp_path: Path) -> None:
    make_finished(tmp_path)
    (tmp_path / "notes.html").write_text("my notes")
    done = launch(tmp_path, "report", "small", "--to", "notes.html")
    assert done.returncode == 2
    assert "notes.html exists and is no report of Slipway's. Name another file" in done.stderr
    assert (tmp_path / "notes.html").read_text() == "my notes"


def test_earlier_report_is_replaced(tmp_path: Path) -> None:
    folder = make_finished(tmp_path)
    for _ in range(2):
        assert launch(tmp_path, "report", "small", "--to", "page.html").returncode == 0
    assert (tmp_path / "page.html").exists() and not (folder / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report"], "name one or more runs, or use --all"),
        (["report", "small", "--all"], "name one or more runs, or use --all"),
        (["report", "small", "--to", "absent/page.html"], "there is no folder absent"),
        (["report", "small", "--to", "runs"], "runs is a folder. Name a file in it: --to runs/"),
    ],
)
def test_wrong_use_is_an_error(tmp_path: Path, arguments: list[str], message: str) -> None:
    make_finished(tmp_path)
    done = launch(tmp_path, *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_all_unknown_runs_are_reported_and_nothing_is_written(tmp_path: Path) -> None:
    folder = make_finished(tmp_path)
    done = launch(tmp_path, "report", "smal", "small", "absent")
    assert done.returncode == 2
    assert "smal: no run of this name" in done.stderr and "absent: no run" in done.stderr
    assert not (folder / "report.html").exists()


def test_index_links_the_report_of_each_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    make_finished(tmp_path, "first")
    make_finished(tmp_path, "second")
    done = launch(tmp_path, "report", "--all")
    assert done.stdout == "runs/index.html\n"
    page = Page((tmp_path / "runs" / "index.html").read_text())
    assert sorted(page.links) == ["first/report.html", "second/report.html"]
    assert all((tmp_path / "runs" / link).exists() for link in page.links)
    assert page.tags.count("polyline") == 2


def test_index_writes_nothing_into_other_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    other = make_finished(tmp_path, "other")
    (tmp_path / "here").mkdir()
    assert launch(tmp_path, "report", "--all", "--runs", "here").returncode == 0
    page = Page((tmp_path / "here" / "index.html").read_text())
    assert "other" in page.text and page.links == []
    assert not (other / "report.html").exists()


def test_index_keeps_reports_that_are_newer_than_their_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = make_finished(tmp_path) / "report.html"
    launch(tmp_path, "report", "--all")
    written = path.stat().st_mtime_ns
    launch(tmp_path, "report", "--all")
    assert path.stat().st_mtime_ns == written


def test_followed_page_reloads_itself_until_the_run_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "REFRESH_S", 0.05)
    target = tmp_path / "page.html"
    options = ReportOptions(runs=tmp_path / "runs", to=target, follow=True, as_json=False)
    with make_run(tmp_path, steps=2) as run:
        run.set_state(RunState.RUNNING)
        add_steps(run, 1)
        following = threading.Thread(target=report_runs, args=(["small"], options))
        following.start()
        wait_until(lambda: target.exists() and LIVE in target.read_text())
        add_steps(run, 2)
        wait_until(lambda: "2/2" in target.read_text())
        run.set_state(RunState.FINISHED)
    following.join(10)
    assert not following.is_alive()
    assert LIVE not in target.read_text()


def test_report_of_a_live_run_without_follow_is_written_once(tmp_path: Path) -> None:
    with make_run(tmp_path) as run:
        run.set_state(RunState.RUNNING)
        done = launch(tmp_path, "report", "small", "-o", "json")
    assert json.loads(done.stdout)["live"] is True
    assert LIVE in (run.folder / "report.html").read_text()
