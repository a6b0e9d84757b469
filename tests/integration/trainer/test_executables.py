"""Compiled programs on disk: what a later process loads, and when it compiles instead."""

from pathlib import Path

import jax
import pytest

from tests.support import gang
from tests.support.gang import Ended
from tests.support.jobs import corpus_of, job_of, world_of
from trainer.contract.planning.planner import resolve
from trainer.step import executables

WORLD = world_of(2, 2)
STEPS = 4
FIRST_STEPS = 2
"""Steps of the first attempt."""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "slipway" / "executables"


def attempt(number: int, folder: Path, until: int | None = None) -> Ended:
    job = job_of(
        steps=STEPS, stop_after_step=until, eval={"every_steps": 2, "batches": 1}, sample=None,
        checkpoint={"every_steps": FIRST_STEPS},
    )  # fmt: skip
    ended = gang.run(job, WORLD, folder, attempt=number)
    assert ended.codes == [0, 0], ended.outputs
    return ended


def work(ended: Ended) -> list[tuple[int, int]]:
    """Traces and compilations of each process up to its first step."""
    events = [event for event in ended.events if event["event"] == "compiled"]
    return [(event["traces"], event["compilations"]) for event in events]


def test_the_next_attempt_traces_and_compiles_nothing(programs: Path, tmp_path: Path) -> None:
    first = attempt(1, tmp_path / "run", until=FIRST_STEPS)
    assert all(traces and compilations for traces, compilations in work(first))
    assert work(attempt(2, tmp_path / "run")) == [(0, 0), (0, 0)]


def test_the_losses_are_those_of_programs_that_were_traced(programs: Path, tmp_path: Path) -> None:
    attempt(1, tmp_path / "run", until=FIRST_STEPS)
    losses = attempt(2, tmp_path / "run").losses()
    assert losses == attempt(1, tmp_path / "undisturbed").losses()


def test_damaged_programs_are_made_again(programs: Path, tmp_path: Path) -> None:
    attempt(1, tmp_path / "run", until=FIRST_STEPS)
    for path in filter(Path.is_file, programs.rglob("*")):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    assert all(traces for traces, _ in work(attempt(2, tmp_path / "run")))
    attempt(3, tmp_path / "again")


def key(**changes: object) -> str:
    job = job_of(**changes)
    return executables._key(job, resolve(job, WORLD, corpus_of(job)), jax.devices()[0])


@pytest.mark.parametrize(
    "changes",
    [{"steps": 99}, {"seed": 9}, {"mesh": {"tensor": 2}}, {"optimizer": {"clip_norm": 7.0}}],
)
def test_another_program_has_another_key(changes: dict[str, object]) -> None:
    assert key(**changes) != key()


def test_another_environment_has_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_enable_flash=true")
    assert key() != before


@pytest.mark.parametrize(
    "changes", [{"name": "other"}, {"log_every": 7}, {"optimizer": {"learning_rate": 0.5}}]
)
def test_the_same_program_has_the_same_key(changes: dict[str, object]) -> None:
    assert key(**changes) == key()
