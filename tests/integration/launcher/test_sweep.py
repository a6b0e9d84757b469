"""`launch sweep` before anything runs: wrong input, and what the folders of earlier runs imply."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from launcher.cluster.schema import ClusterRef
from launcher.commands.sweep_plan import SweepPlan, SweepRequest, plan_sweep
from launcher.runs.directory import RunDir
from tests.support.cli import launch
from tests.support.launch_plans import COMMAND_JOB, JOB
from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError

SECTION = "sweep:\n  values:\n    model.layers: [1, two]\n    optimizer.name: adamw,lion\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "section.yaml").write_text(JOB + SECTION)
    (tmp_path / "any.yaml").write_text(COMMAND_JOB)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        (["absent.yaml", "steps=1,2"], ["absent.yaml: no such file"]),
        (["job.yaml"], ["job.yaml: an empty sweep: no key has several values"]),
        (["job.yaml", "steps=4"], ["an empty sweep"]),
        (["job.yaml", "optimizer.learning_rte=1e-3,2e-3"],
         ["override optimizer.learning_rte=0.001: unknown key. Did you mean 'learning_rate'?"]),
        (["job.yaml", "seed=lgo(1,2)", "steps=1,,2"],
         ["override seed=lgo(1,2): expected log(LOW, HIGH) or uniform(LOW, HIGH)",
          "override steps=1,,2: an empty value in the list"]),
        (["job.yaml", "optimizer.learning_rate=log(1e-4,1e-2)"], ["--samples: missing"]),
        (["job.yaml", "steps=4,8,4"], ["steps: 4 is listed 2 times"]),
        (["job.yaml", "name=a,b"], ["override name=a,b: a point is named by the sweep"]),
        (["job.yaml", "steps=1,2", "steps=3,4"], ["override steps=3,4: steps is swept twice"]),
        (["job.yaml", "model.layers=1,two", "data.global_batch=4,3", "mesh.fsdp=2"],
         ["override model.layers=two: expected a whole number", "data.global_batch"]),
        (["section.yaml"],
         ["section.yaml:7: model.layers=two: expected a whole number of at least 1, found 'two'"]),
        (["job.yaml", "steps=20,40", "--early-stop"], ["points have different numbers"]),
        (["job.yaml", "seed=1,2", "eval=null", "checkpoint=null", "--early-stop"],
         ["early stopping: eval: null", "early stopping: checkpoint: null"]),
        (["any.yaml", "grace_s=1.0,2.0", "--early-stop"], ["early stopping: command"]),
    ],
)  # fmt: skip
def test_bad_input_is_explained_and_starts_nothing(
    folder: Path, words: list[str], messages: list[str]
) -> None:
    result = launch(folder, "sweep", *words)
    assert result.returncode == 2
    assert all(message in result.stderr for message in messages), result.stderr
    assert "Traceback" not in result.stderr
    assert not (folder / "runs").exists()


def planned(folder: Path, *words: str, job: str = "job.yaml", runs: str = "runs") -> SweepPlan:
    return plan_sweep(
        SweepRequest(
            job_file=folder / job,
            arguments=words,
            samples=None,
            seed=None,
            early_stop=False,
            cluster_ref=ClusterRef(),
            runs=folder / runs,
        )
    )


def shapes(*words: str, folder: Path) -> int:
    return len({point.shape for point in planned(folder, *words).points})


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["optimizer.learning_rate=1e-3,3e-3"], 1),
        (["optimizer.warmup_steps=1,2", "steps=8,9"], 1),
        (["seed=1,2,3"], 1),
        (["seed=1,2,3", "model.dropout=0.1"], 3),
        (["model.layers=1,2", "optimizer.learning_rate=1e-3,3e-3"], 2),
        (["optimizer.weight_decay=0.1,0.2"], 2),
    ],
)
def test_points_with_the_same_compiled_step_have_one_shape(
    folder: Path, words: Sequence[str], count: int
) -> None:
    assert shapes(*words, folder=folder) == count


def test_the_command_line_replaces_keys_of_the_section(folder: Path) -> None:
    found = planned(folder, "model.layers=1,2", "optimizer.name=lion", job="section.yaml")
    assert [point.point.values for point in found.points] == [
        {"model.layers": 1}, {"model.layers": 2}
    ]  # fmt: skip
    jobs = [point.spec.job for point in found.points]
    assert all(isinstance(job, Job) and job.optimizer.name == "lion" for job in jobs)


def test_a_point_that_was_run_with_another_job_is_an_error(folder: Path) -> None:
    before = planned(folder, "seed=1,2").points[0].until(1)
    RunDir.create(before).close()
    planned(folder, "seed=1,2")
    with pytest.raises(ConfigError, match=r"another job \(steps: 2 -> 4\)"):
        planned(folder, "seed=1,2", "steps=4")
