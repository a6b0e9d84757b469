"""Programs for fewer hosts: one process compiles them before a host is lost."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support import gang
from tests.support.jobs import corpus_of, job_of, world_of
from tests.support.sampling import IS_FULL
from trainer.ahead.background import AheadOfTime
from trainer.contract.planning.planner import resolve

HOSTS = 3 if IS_FULL else 2
BEFORE, AFTER = world_of(HOSTS, 1), world_of(HOSTS - 1, 1)
SMALLER = f"smaller-{HOSTS - 1:04d}"
COMPILED = ((0, 0), (2, 1)) if IS_FULL else ((0, 0),)
"""Process of the run -> the process of the smaller run for which its host compiles."""
JOB = job_of(
    steps=4,
    data={"global_batch": 12},
    eval={"every_steps": 2, "batches": 1},
    checkpoint={"every_steps": 2},
)
PLAN = resolve(JOB, BEFORE, corpus_of(JOB))
DEADLINE_S = 240
POLL_INTERVAL_S = 0.1


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run that may shrink by a host, in the environment of a host."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run_dir = tmp_path / "run"
    port = gang.write(JOB, BEFORE, run_dir)
    for name, text in gang.environment(BEFORE, run_dir, 0, port).items():
        monkeypatch.setenv(name, text)
    plan = resolve(JOB, AFTER, corpus_of(JOB)).model_dump_json()
    (run_dir / f"plans/{SMALLER}.json").write_text(plan)
    return run_dir


def compile_as(process: int, run_dir: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Compiles what a process's host compiles; returns what it prints."""
    text, deadline_s = "", time.monotonic() + DEADLINE_S
    with AheadOfTime(run_dir, PLAN, process) as ahead:
        ahead.start()
        while "compiled ahead" not in text and time.monotonic() < deadline_s:
            time.sleep(POLL_INTERVAL_S)
            text += capsys.readouterr().out
    return text


def compiling() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "trainer.ahead" in child.cmdline()]


@pytest.mark.slow
def test_a_run_on_fewer_hosts_traces_and_compiles_nothing(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = gang.run(JOB.model_copy(update={"stop_after_step": 2}), BEFORE, run_dir)
    assert first.codes == [0] * HOSTS, first.outputs
    for process, number in COMPILED:
        said = compile_as(process, run_dir, capsys)
        assert f"compiled ahead for process {number} of {SMALLER}: " in said, said
    second = gang.run(JOB, AFTER, run_dir, attempt=2)
    assert second.codes == [0] * (HOSTS - 1), second.outputs
    compiled = [event for event in second.events if event["event"] == "compiled"]
    assert [(event["traces"], event["compilations"]) for event in compiled] == [(0, 0)] * (
        HOSTS - 1
    )


def test_a_process_that_compiles_ends_with_the_training(run_dir: Path) -> None:
    with AheadOfTime(run_dir, PLAN, 0) as ahead:
        ahead.start()
        deadline_s = time.monotonic() + DEADLINE_S
        while not compiling() and time.monotonic() < deadline_s:
            time.sleep(POLL_INTERVAL_S)
        assert compiling()
    assert not compiling()


def test_a_process_that_compiles_ends_when_the_trainer_is_killed(run_dir: Path) -> None:
    plan = run_dir / f"plans/{SMALLER}.json"
    command = [sys.executable, "-m", "trainer.ahead", str(run_dir / "job.yaml"), str(plan), "0"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdin and process.stdout
        process.stdin.close()
        assert process.stdout.read() == b""
        assert process.wait(DEADLINE_S) == 1


def test_a_limit_of_0_bytes_compiles_nothing_ahead(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIPWAY_PROGRAMS_BYTES", "0")
    with AheadOfTime(run_dir, PLAN, 0) as ahead:
        ahead.start()
        assert not compiling()
