"""Compiled programs on disk: what a later process loads, and when it compiles instead."""

import shutil
from pathlib import Path

import pytest

from tests.support import gang
from tests.support.gang import Ended
from tests.support.harness import bench
from tests.support.jobs import job_of, world_of
from trainer.contract.protocol.environment import PROGRAMS_BYTES

WORLD = world_of(2, 2)
STEPS = 4
FIRST_STEPS = 2
"""Steps of the first attempt."""
CUSTOM = {"module": "jobs.own_model:build", "args": {"width": 16, "hidden": 32}}
NONE = [(0, 0), (0, 0)]


@pytest.fixture
def no_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the programs that a test compiles."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "slipway" / "executables"


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """The first attempt of a run, whose caches were empty."""
    folder = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        return attempt(1, folder / "run", until=FIRST_STEPS)


@pytest.fixture(scope="module")
def second(first: Ended, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """The attempt after it, in a copy of its folder and with a copy of its caches."""
    folder = tmp_path_factory.mktemp("second")
    shutil.copytree(first.run_dir.parent, folder, dirs_exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        return attempt(2, folder / "run")


@pytest.fixture
def programs(first: Ended, no_programs: Path, tmp_path: Path) -> Path:
    """The folder of the programs of a first attempt; its run is copied to `tmp_path / "run"`."""
    shutil.copytree(first.run_dir.parent, tmp_path, dirs_exist_ok=True)
    return no_programs


def attempt(
    number: int,
    folder: Path,
    until: int | None = None,
    host_env: dict[int, dict[str, str]] | None = None,
    **changes: object,
) -> Ended:
    settings = {
        "steps": STEPS, "stop_after_step": until, "eval": {"every_steps": 2, "batches": 1},
        "sample": None, "checkpoint": {"every_steps": FIRST_STEPS},
    }  # fmt: skip
    job = job_of(**{**settings, **changes})
    ended = gang.wait(folder, gang.start(job, WORLD, folder, number, host_env=host_env))
    assert ended.codes == [0, 0], ended.outputs
    return ended


def work(ended: Ended) -> list[tuple[int, int]]:
    """Traces and compilations of each process up to its first step."""
    events = [event for event in ended.events if event["event"] == "compiled"]
    return [(event["traces"], event["compilations"]) for event in events]


def test_the_next_attempt_traces_and_compiles_nothing(first: Ended, second: Ended) -> None:
    assert all(work(first)[0])
    assert work(second) == NONE


def test_process_0_compiles_for_all(no_programs: Path, tmp_path: Path) -> None:
    own_disk = {1: {"XDG_CACHE_HOME": str(tmp_path / "other")}}
    first = attempt(1, tmp_path / "run", until=FIRST_STEPS, host_env=own_disk)
    assert [compilations for _, compilations in work(first)] == [2, 0]
    assert work(attempt(2, tmp_path / "run", host_env=own_disk)) == NONE


def test_a_process_compiles_what_process_0_has_and_it_lacks(programs: Path, tmp_path: Path) -> None:
    own_disk = {1: {"XDG_CACHE_HOME": str(tmp_path / "other")}}
    has, lacks = work(attempt(2, tmp_path / "run", host_env=own_disk))
    assert has == (0, 0)
    assert all(lacks)


@pytest.mark.full
def test_a_process_compiles_what_process_0_does_not_keep(no_programs: Path, tmp_path: Path) -> None:
    keeps_nothing = {0: {PROGRAMS_BYTES: "0"}}
    first = attempt(1, tmp_path / "run", until=FIRST_STEPS, host_env=keeps_nothing)
    assert all(compilations for _, compilations in work(first))


def test_another_seed_needs_no_other_programs(programs: Path, tmp_path: Path) -> None:
    other = attempt(1, tmp_path / "other", until=FIRST_STEPS, seed=9)
    assert work(other) == NONE
    _, metrics = bench(job_of(steps=STEPS, seed=9)).run(FIRST_STEPS)
    assert other.losses() == pytest.approx([float(one.loss) for one in metrics], rel=1e-5)


@pytest.mark.full
def test_another_job_of_the_same_shapes_keeps_its_programs_too(
    programs: Path, tmp_path: Path
) -> None:
    sample = {"temperature": 0.9, "tokens": 1}
    other = attempt(1, tmp_path / "other", until=FIRST_STEPS, sample=sample)
    assert [compilations for _, compilations in work(other)] == [0, 0]
    assert work(attempt(2, tmp_path / "other", sample=sample)) == NONE


@pytest.mark.full
def test_a_custom_model_is_neither_traced_nor_compiled_again(
    no_programs: Path, tmp_path: Path
) -> None:
    attempt(1, tmp_path / "run", until=FIRST_STEPS, model=CUSTOM)
    assert work(attempt(2, tmp_path / "run", model=CUSTOM)) == NONE


@pytest.mark.usefixtures("no_programs")
def test_the_losses_are_those_of_programs_that_were_traced(second: Ended, tmp_path: Path) -> None:
    traced = attempt(1, tmp_path / "run")
    assert all(traces for traces, _ in work(traced))
    assert second.losses() == traced.losses()


def test_damaged_programs_are_made_again(programs: Path, tmp_path: Path) -> None:
    for path in programs.glob("*/*"):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    assert all(traces for traces, _ in work(attempt(2, tmp_path / "run")))
    attempt(3, tmp_path / "again")


@pytest.mark.full
def test_a_limit_of_0_bytes_keeps_no_programs(
    no_programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PROGRAMS_BYTES, "0")
    attempt(1, tmp_path / "run", until=FIRST_STEPS)
    assert not no_programs.exists()
