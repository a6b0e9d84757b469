"""`--fresh`: what of an earlier run is moved aside, and what is not forgotten."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.planning.spec import LaunchSpec
from launcher.runs import storage
from launcher.runs.directory import RunDir
from launcher.runs.folder import REMOTE, RunFolderError
from launcher.runs.records import KubernetesRecord
from tests.support.launch_plans import small_launch
from trainer.contract.config.command import load_job
from trainer.contract.config.job import Job
from trainer.contract.records.checkpoint_metadata import folder_of


def stored_launch(folder: Path, place: str) -> LaunchSpec:
    launch = small_launch(folder)
    return replace(launch, job=launch.job.model_copy(update={"storage": place}))


def save(run: RunDir, place: Path) -> Path:
    """What a trainer leaves in storage: its lease, and a step."""
    checkpoints = place / "small" / "checkpoints"
    checkpoints.mkdir(parents=True)
    holder = (run.folder / "run_id").read_text().strip()
    (checkpoints / "lease.json").write_text(json.dumps({"run_id": holder, "attempt": 1, "id": "x"}))
    (checkpoints / "2").mkdir()
    return checkpoints


def test_fresh_moves_checkpoints_in_storage_aside_for_earlier_run(
    tmp_path: Path,
) -> None:
    launch = stored_launch(tmp_path, str(tmp_path / "storage"))
    with RunDir.create(launch) as run:
        checkpoints = save(run, tmp_path / "storage")
    RunDir.create(launch, fresh=True).close()
    assert not checkpoints.exists()
    earlier = launch.run_dir.with_name("small.1")
    job = load_job(earlier / "job.yaml").value
    assert isinstance(job, Job)
    assert (Path(folder_of(job, earlier)) / "2").is_dir()


def test_fresh_in_a_bucket_takes_a_prefix_of_its_own_each_time(tmp_path: Path) -> None:
    launch = stored_launch(tmp_path, "gs://bucket/runs")
    assert storage.apart_from_earlier(launch).job.storage == "gs://bucket/runs"
    used = ["gs://bucket/runs"]
    RunDir.create(launch).close()
    for _ in range(2):
        fresh = storage.apart_from_earlier(launch)
        RunDir.create(fresh, fresh=True).close()
        used.append(str(fresh.job.storage))
    assert all(one.startswith("gs://bucket/runs/small.") for one in used[1:])
    assert len(set(used)) == 3
    assert load_job(launch.run_dir / "job.yaml").value.storage == used[-1]


@pytest.mark.parametrize("fresh", [False, True])
def test_foreign_checkpoints_in_storage_are_refused_first(fresh: bool, tmp_path: Path) -> None:
    other = stored_launch(tmp_path, str(tmp_path / "storage"))
    with RunDir.create(replace(other, run_dir=tmp_path / "others" / "small")) as run:
        checkpoints = save(run, tmp_path / "storage")
    if fresh:
        RunDir.create(replace(other, job=small_launch(tmp_path).job)).close()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RunFolderError, match=r"of another run\. .* \(mv .*small .*small\.1\)"):
        RunDir.create(other, fresh=fresh)
    assert sorted(tmp_path.rglob("*")) == before
    assert (checkpoints / "2").is_dir()


@pytest.mark.parametrize("record", [KubernetesRecord.FILE, REMOTE])
def test_fresh_does_not_forget_what_an_earlier_run_has_elsewhere(
    record: str, tmp_path: Path
) -> None:
    launch = small_launch(tmp_path)
    RunDir.create(launch).close()
    (launch.run_dir / record).write_text("{}")
    with pytest.raises(RunFolderError, match=rf"{record} says which\)\. End it .*launch stop"):
        RunDir.create(launch, fresh=True)
    assert (launch.run_dir / record).exists()
