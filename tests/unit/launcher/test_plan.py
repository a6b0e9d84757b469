"""(Job, Cluster) -> what would be started: where the checkpoints of a run go."""

from pathlib import Path

import pytest

from launcher.cluster.schema import Cluster, ClusterRef
from launcher.planning.planner import TrainingLaunch, make_launch
from launcher.planning.spec import LaunchSpec
from tests.support.launch_plans import JOB, planned
from tests.support.worlds import tiny_job
from trainer.contract.config.loader import ConfigError, Loaded
from trainer.contract.planning.save_interval import HOST_MTBF_S, LONGEST_S
from trainer.contract.protocol.environment import HOST_MEMORY_BYTES

SSH = {"kind": "ssh", "hosts": ["a", "b"]}


def launch_of(
    storage: str | None, of_cluster: str | None, *, simulate: bool = False, **job: object
) -> LaunchSpec:
    job_file = Loaded(tiny_job(storage=storage, **job), "job.yaml", {})
    cluster = Cluster.model_validate(
        {"accelerator": "h100-16", "provider": SSH, "storage": of_cluster}
    )
    words = ClusterRef(simulate=simulate)
    return make_launch(job_file, Loaded(cluster, "c.yaml", {}), Path("runs"), words)


@pytest.mark.parametrize(
    ("storage", "of_cluster", "resolved"),
    [
        ("/job", "/cluster", "/job"),
        (None, "/cluster", "/cluster"),
        (None, "gs://bucket/x", "gs://bucket/x"),
        ("~/shared", None, "~/shared"),
        (None, None, None),
    ],
)
def test_the_cluster_names_the_storage_of_jobs_that_name_none(
    storage: str | None, of_cluster: str | None, resolved: str | None
) -> None:
    assert launch_of(storage, of_cluster).job.storage == resolved


def test_a_relative_storage_is_the_same_from_any_folder(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert launch_of("shared", None).job.storage == str(tmp_path / "shared")


def test_several_machines_lack_a_storage_that_neither_file_names() -> None:
    launch = launch_of(None, None)
    assert "in job.yaml and in c.yaml" in launch.storage_problem
    assert launch.plan.warnings[-1] == launch.storage_problem


def test_what_saves_nothing_or_is_simulated_needs_no_storage() -> None:
    assert launch_of("/job", None).storage_problem == ""
    assert launch_of(None, None, checkpoint=None).storage_problem == ""
    assert launch_of(None, None, simulate=True).storage_problem == ""


def test_a_cluster_file_is_remembered_by_where_it_is(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ClusterRef(name="c.yaml").lasting().name == str(tmp_path / "c.yaml")
    assert ClusterRef(name="tpu-v4-32").lasting().name == "tpu-v4-32"


def test_each_host_has_two_slots_for_itself_and_two_for_a_neighbor() -> None:
    saving = {"every_steps": 10, "in_memory_every_steps": 10}
    sharded = launch_of("/job", None, checkpoint=saving, mesh={"data": 1, "fsdp": -1})
    a_host = sharded.checkpoint_bytes / sharded.plan.world.processes
    assert sharded.in_memory_bytes == pytest.approx(4 * a_host, abs=4.2 * 2**20)
    assert sharded.environment(0)[HOST_MEMORY_BYTES] == str(sharded.in_memory_bytes)


def test_problems_of_task_files_and_of_the_job_are_reported_together(tmp_path: Path) -> None:
    task = tmp_path / "task.yaml"
    task.write_text("task: mine\ndataset_path: hub\n")
    with pytest.raises(ConfigError) as raised:
        launch_of("/job", None, eval={"tasks": [str(task)]}, mesh={"tensor": 3})
    of_job, *of_task = raised.value.problems
    assert (of_job.file, of_job.key) == ("job.yaml", "mesh")
    assert str(of_task[0]) == f"{task}:2: dataset_path: 'hub' is not one of json"
    assert {one.key for one in of_task[1:]} == {
        "dataset_kwargs", "output_type", "doc_to_text", "doc_to_target"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content", "key", "message"),
    [
        (None, "tokenizer", "cannot read"),
        ("{}", "tokenizer", "is not a Hugging Face tokenizer.json"),
        ('{"model": {"vocab": {}}, "added_tokens": [{"content": "<|x|>", "id": 0}]}', "eos_token",
         "has none of the usual ones"),
    ],
)  # fmt: skip
def test_a_tokenizer_that_cannot_be_used_has_file_line_and_key(
    tmp_path: Path, content: str | None, key: str, message: str
) -> None:
    file = tmp_path / "tokenizer.json"
    if content:
        file.write_text(content)
    job = JOB.replace("source: stdlib", f"source: stdlib, tokenizer: {file}")
    with pytest.raises(ConfigError) as error:
        planned(tmp_path / "job.yaml", job, "local")
    (found,) = error.value.lines
    assert found.startswith(f"{tmp_path / 'job.yaml'}:4: data.{key}: ") and message in found


def test_a_job_without_in_memory_checkpoints_needs_no_memory_for_them() -> None:
    launch = launch_of("/job", None)
    assert launch.in_memory_bytes == 0
    assert HOST_MEMORY_BYTES not in launch.environment(0)


def test_plan_has_the_first_and_the_longest_automatic_interval() -> None:
    launch = launch_of("/job", None, checkpoint={"every_minutes": "auto"})
    assert isinstance(launch, TrainingLaunch)
    first, later = launch.first_save_interval, launch.settled_save_interval
    assert first and later
    assert (first.saves, first.faults) == (0, 0)
    assert 1.0 < first.cost_s < 1.1  # a second, and a tiny model
    assert 30.0 < first.seconds < later.seconds == LONGEST_S
    assert later.mtbf_s == HOST_MTBF_S / launch.plan.world.processes


def test_plan_without_an_automatic_interval_has_none() -> None:
    launch = launch_of("/job", None)
    assert isinstance(launch, TrainingLaunch)
    assert launch.plan.save_statistics is None
    assert launch.first_save_interval is None and launch.settled_save_interval is None
