"""Programs that a run brings to a host: loaded if they are its own, else refused and never run."""

import subprocess
import sys
from pathlib import Path

import jax
import pytest

from tests.support import gang
from tests.support.jobs import corpus_of, job_of, world_of
from trainer.contract.planning.plan import World
from trainer.contract.planning.planner import resolve
from trainer.contract.storage import kept_programs
from trainer.programs import hot_start, keys
from trainer.programs.bundle import Bundle

JOB = job_of(
    steps=2,
    eval={"every_steps": 2, "batches": 1},
    sample={"prompt": "a", "tokens": 4},
    checkpoint={"every_steps": 2},
)
ONE, TWO = world_of(1, 1), world_of(2, 1)
PLAN = resolve(JOB, ONE, corpus_of(JOB))
PROGRAMS = {"key/TrainProgram.step": b"no program"}


def bring(run_dir: Path, **changes: str) -> Path:
    """Writes a bundle of this process for the run, made from other things by `changes`."""
    path = run_dir / kept_programs.IN_RUN / kept_programs.file_name(1, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    made_from = keys.made_from(JOB, PLAN, jax.devices()[0])
    Bundle({**made_from, **changes}, PROGRAMS).write(path)
    return path


def find(run_dir: Path) -> hot_start.HotStart:
    return hot_start.find(run_dir, JOB, PLAN, 0, jax.devices()[0])


def test_programs_of_the_same_process_are_accepted(tmp_path: Path) -> None:
    bring(tmp_path)
    assert find(tmp_path) == hot_start.HotStart(PROGRAMS)


def test_a_run_without_programs_says_nothing(tmp_path: Path) -> None:
    assert find(tmp_path) == hot_start.HotStart()


@pytest.mark.parametrize(
    ("part", "value", "reason"),
    [
        ("jaxlib", "0.0.1", "jaxlib 0.0.1, here"),
        ("code", "0" * 64, "another code"),
        ("XLA_FLAGS", "--other", "XLA_FLAGS --other, here"),
        ("process", "7", "process 7, here 0"),
        ("CPU features", "flags : none", "CPU features"),
        ("job", '{"steps":3}', "job: other "),
        ("plan", '{"world":1}', "plan: other "),
    ],
)
def test_stale_or_foreign_programs_are_refused_with_the_reason(
    tmp_path: Path, part: str, value: str, reason: str
) -> None:
    bring(tmp_path, **{part: value})
    found = find(tmp_path)
    assert not found.programs
    assert found.rejection.startswith("0001-0000.bundle was made from ")
    assert reason in found.rejection


def test_damaged_or_missing_programs_are_refused_with_the_reason(tmp_path: Path) -> None:
    path = bring(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    assert find(tmp_path) == hot_start.HotStart(
        rejection="0001-0000.bundle: it is damaged: its SHA-256 is another one"
    )
    path.unlink()
    assert find(tmp_path).rejection.startswith("0001-0000.bundle is missing")


def keep(world: World, run_dir: Path) -> None:
    """Compiles for each process of a world, as `launch plan --compile --keep` does."""
    port = gang.write(JOB, world, run_dir)
    (run_dir / kept_programs.IN_RUN).mkdir()
    for process in range(world.processes):
        path = run_dir / kept_programs.IN_RUN / kept_programs.file_name(world.processes, process)
        files = [str(run_dir / "job.yaml"), str(run_dir / "plans" / "0001.json")]
        command = [sys.executable, "-m", "trainer.ahead.keep", *files, str(process), str(path)]
        variables = gang.environment(world, run_dir, process, port)
        subprocess.run(command, env=variables, check=True, stdout=subprocess.DEVNULL)


def executables(cache: Path) -> list[str]:
    return [path.name for path in cache.glob("slipway/executables/*/*")]


@pytest.fixture
def hot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> gang.Ended:
    """A run on two hosts with empty caches, to which its programs were brought."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "here"))
    keep(TWO, tmp_path / "run")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "there"))
    return gang.run(JOB, TWO, tmp_path / "run")


@pytest.mark.slow
def test_a_first_attempt_compiles_nothing(hot: gang.Ended, tmp_path: Path) -> None:
    assert hot.codes == [0, 0], hot.outputs
    compiled = [event for event in hot.events if event["event"] == "compiled"]
    assert [(event["traces"], event["compilations"]) for event in compiled] == [(0, 0), (0, 0)]
    assert all("hot start: loaded 2 programs" in output for output in hot.outputs)
    assert executables(tmp_path / "there") == [], "evaluation, sample or a digest was compiled"


@pytest.mark.slow
@pytest.mark.full
def test_a_first_attempt_compiles_what_is_stale(hot: gang.Ended, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / kept_programs.IN_RUN).mkdir(parents=True)
    for path in (tmp_path / "run" / kept_programs.IN_RUN).iterdir():
        found = Bundle.read(path)
        stale = {**found.made_from, "jaxlib": "0.0.1"}
        never_read = dict.fromkeys(found.programs, b"no program")
        Bundle(stale, never_read).write(other / kept_programs.IN_RUN / path.name)
    cold = gang.run(JOB, TWO, other)
    assert cold.codes == [0, 0], cold.outputs
    assert all("was made from jaxlib 0.0.1, here" in output for output in cold.outputs)
    assert cold.losses() == hot.losses()
    assert executables(tmp_path / "there")
