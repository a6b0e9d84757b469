"""What `launch resume` decides before anything starts, and what it refuses."""

import json
from pathlib import Path

import pytest

from launcher.cluster.schema import ClusterRef
from launcher.core.states import RunState
from launcher.executors.resume_point import Resumed, new_cluster_ref, plan_resume
from launcher.runs.directory import RunDir
from launcher.runs.folder import find_run, resume_command
from launcher.runs.state_file import Position
from tests.support.checkpoint_metadata_builders import about_of
from tests.support.cli import launch
from tests.support.launch_plans import small_launch
from tests.support.run_folders import event_of
from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError, load
from trainer.contract.records.checkpoint_metadata import read_about


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of 2 steps that was interrupted after one; here are its `runs`."""
    monkeypatch.chdir(tmp_path)
    made = small_launch(tmp_path)
    with RunDir.create(made) as run:
        save(made.run_dir / "checkpoints", made.job, 1, made.plan.corpus.sha256)
        run.set_state(RunState.INTERRUPTED, Position(step=1))
    return made.run_dir


def save(folder: Path, job: Job, step: int, corpus_sha256: str | None) -> None:
    (folder / str(step)).mkdir(parents=True)
    about = about_of(job, step=step, corpus_sha256=corpus_sha256)
    (folder / str(step) / "about.json").write_text(about.model_dump_json())


def resumed(folder: Path, *overrides: str) -> Resumed:
    with RunDir.open(folder) as run:
        return plan_resume(run, overrides, run.cluster_ref)


def problems(folder: Path, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        resumed(folder, *overrides)
    return caught.value.lines


def test_the_next_attempt_goes_on_from_the_newest_checkpoint(folder: Path) -> None:
    next_one = resumed(folder)
    assert next_one.launch.attempt == 2
    assert next_one.launch.environment(0)["SLIPWAY_ATTEMPT"] == "2"
    assert next_one.launch.run_dir == folder
    assert next_one.newest is not None
    assert next_one.newest.step == 1
    assert (next_one.notes, next_one.is_complete) == ([], False)


def test_an_attempt_is_written_beside_the_earlier_ones(folder: Path) -> None:
    run_id = (folder / "run_id").read_text()
    with RunDir.open(folder) as run:
        run.begin(plan_resume(run, ["steps=5"], run.cluster_ref).launch)
    assert sorted(path.name for path in (folder / "plans").iterdir()) == ["0001.json", "0002.json"]
    assert load(folder / "job.yaml", Job).value.steps == 5
    state = json.loads((folder / "state.json").read_text())
    assert (state["state"], state["attempt"]) == ("provisioning", 2)
    assert state["cluster"] == {"name": "local", "simulate": False, "simulate_hosts": None}
    assert (folder / "run_id").read_text() == run_id
    assert len(run_id.strip()) == 32


def test_changes_are_printed_and_another_model_is_refused(folder: Path) -> None:
    assert resumed(folder, "optimizer.learning_rate=1e-3").notes == [
        "changed: optimizer.learning_rate: 0.0003 -> 0.001"
    ]
    found = problems(folder, "model.layers=3", "data.seq_len=8")
    assert "model.layers: 1 -> 3: the weights of step 1 belong to another model" in found[0]
    assert "set checkpoint.on_data_change=continue to resume with the new data" in found[1]
    allowed = resumed(folder, "data.seq_len=8", "checkpoint.on_data_change=continue")
    assert allowed.notes == ["changed: data.seq_len: 16 -> 8"]


def test_a_run_keeps_its_name_and_its_checkpoints(folder: Path, tmp_path: Path) -> None:
    assert "a run keeps its name" in problems(folder, "name=other")[0]
    (problem,) = problems(folder, f"storage={tmp_path}/elsewhere")
    assert f"there is no checkpoint in {tmp_path}/elsewhere/small/checkpoints" in problem


def test_without_a_checkpoint_it_starts_at_the_first_step(folder: Path) -> None:
    (folder / "checkpoints" / "1" / "about.json").unlink()
    (note,) = resumed(folder).notes
    assert note.endswith("the run starts at the first step")


def test_checkpoints_that_cannot_be_seen_from_here_are_left_to_the_hosts(folder: Path) -> None:
    (note,) = resumed(folder, "storage=nosuch://bucket").notes
    assert note.startswith("nosuch://bucket/small/checkpoints cannot be read from here: ")


def finish(folder: Path) -> None:
    """The second step, with its checkpoint."""
    job = load(folder / "job.yaml", Job).value
    first = read_about(folder / "checkpoints" / "1")
    save(folder / "checkpoints", job, 2, first.corpus_sha256)
    with RunDir.open(folder) as run:
        run.set_state(RunState.FINISHED, Position(step=2))


def test_what_finished_is_complete_until_it_is_given_more_steps(folder: Path) -> None:
    finish(folder)
    assert resumed(folder).is_complete
    assert not resumed(folder, "steps=3").is_complete


def test_torn_lines_do_not_take_the_next_one_with_them(folder: Path) -> None:
    (folder / "events.jsonl").write_text('{"event": "a"}\n{"eve')
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')
    with RunDir.open(folder) as run:
        run.add_event(event_of({"event": "b"}))
    lines = (folder / "events.jsonl").read_text().splitlines()
    assert (lines[1], lines[-1]) == ('{"eve', '{"event": "b"}')
    assert (folder / "metrics.jsonl").read_text() == '{"step": 1}\n'


def test_resume_uses_earlier_cluster_by_default() -> None:
    before = ClusterRef(name="tpu-v4-32", simulate=True)
    assert new_cluster_ref(before, None, False, None) == before
    assert new_cluster_ref(before, None, False, 2).simulate_hosts == 2
    assert new_cluster_ref(before, "local", False, None) == ClusterRef(name="local")


def test_a_run_is_found_by_name_or_path(folder: Path, monkeypatch) -> None:
    assert find_run("small", folder.parent) == folder
    assert find_run(str(folder), Path("elsewhere")) == folder
    assert resume_command(folder) == "launch resume small"
    monkeypatch.chdir("/")
    assert resume_command(folder) == f"launch resume {folder}"


def test_a_run_that_exists_is_refused_with_the_words_to_resume_it(folder: Path) -> None:
    refused = launch(folder.parent.parent, "small.yaml")
    assert refused.returncode == 2
    assert "launch resume small" in refused.stderr
    assert "--fresh" in refused.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["smal"], "smal: no run of this name in runs"),
        (["small", "model.layers=3"], "model.layers: 1 -> 3"),
        (["small", "steps=x"], "override steps=x: expected a whole number"),
        (["small", "-c", "nowhere"], "--cluster nowhere: unknown cluster"),
    ],
)
def test_what_cannot_go_on_is_refused(folder: Path, words: list[str], message: str) -> None:
    refused = launch(folder.parent.parent, "resume", *words)
    assert refused.returncode == 2
    assert message in refused.stderr
    assert not (folder / "plans" / "0002.json").exists()


def test_a_run_that_is_alive_is_refused(folder: Path) -> None:
    with RunDir.open(folder):
        refused = launch(folder.parent.parent, "resume", "small")
    assert refused.returncode == 2
    assert "this run is running now" in refused.stderr


def test_what_finished_and_lost_its_last_checkpoint_is_not_complete(folder: Path) -> None:
    finish(folder)
    (folder / "checkpoints" / "2" / "about.json").unlink()
    assert not resumed(folder).is_complete


def test_a_complete_run_says_so_and_starts_nothing(folder: Path) -> None:
    finish(folder)
    result = launch(folder.parent.parent, "resume", "small")
    assert result.returncode == 0
    assert "small is complete: 2 steps are done" in result.stdout
    assert "launch resume small steps=" in result.stdout
    assert not (folder / "plans" / "0002.json").exists()


def test_complete_run_as_json_prints_its_status(folder: Path) -> None:
    finish(folder)
    result = launch(folder.parent.parent, "resume", "small", "-o", "json")
    found = json.loads(result.stdout)
    assert (found["state"], found["alive"], found["exit_code"]) == ("finished", False, 0)
    assert "is complete" in result.stderr


def test_its_relative_paths_start_where_it_was_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    place.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(place)
    made = small_launch(tmp_path)
    RunDir.create(made).close()
    monkeypatch.chdir(elsewhere)
    with RunDir.open(made.run_dir) as run:
        assert run.launched_in == place
        place.rmdir()
        assert run.launched_in == Path(), "a project that was moved is read where it is now"


def test_a_cluster_file_that_is_named_is_one_of_the_folder_it_is_typed_in() -> None:
    before = ClusterRef(name="local")
    assert new_cluster_ref(before, "pods/a.yaml", False, None).name == str(
        Path.cwd() / "pods/a.yaml"
    )
    assert new_cluster_ref(before, "tpu-v4-8", False, None).name == "tpu-v4-8"
