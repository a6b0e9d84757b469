"""What a job takes from other runs: a checkpoint in `init_from`, and their end in `after`."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.chains.link import prepare
from launcher.cluster.schema import ClusterRef
from launcher.core.states import RunState
from launcher.executors.await_runs import CancelledError, wait_for_runs
from launcher.planning.spec import LaunchSpec
from launcher.runs.directory import RunDir
from tests.support.checkpoint_metadata_builders import about_of
from tests.support.launch_plans import JOB
from tests.support.run_folders import make_run
from tests.support.worlds import tiny_job
from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError
from trainer.contract.hugging_face.config import CONFIG, make
from trainer.contract.records.checkpoint_metadata import Base

BASE = Base(source="/models/base", step=None, digests={})


def save(run: RunDir, step: int, **fields: object) -> None:
    path = run.folder / "checkpoints" / str(step)
    path.mkdir(parents=True)
    (path / "data").write_bytes(b"x")
    about = about_of(tiny_job(), step=step, files={"data": 1}, **fields)
    (path / "about.json").write_text(about.model_dump_json())


def end(run: RunDir, state: RunState, reason: str = "") -> None:
    run.set_state(state, reason=reason)
    run.close()


@pytest.fixture
def pretrain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunDir]:
    """A run with the checkpoints 2, 4 (the best), 6 and 8 (damaged). It is alive."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = make_run(tmp_path, "pretrain")
    save(run, 2, eval_loss=3.0)
    save(run, 4, eval_loss=2.0)
    save(run, 6)
    save(run, 8)
    (run.folder / "checkpoints" / "8" / "data").write_bytes(b"")
    yield run
    run.close()


def plan(folder: Path, *overrides: str, **options: object) -> LaunchSpec:
    (folder / "job.yaml").write_text(JOB)
    return prepare(
        folder / "job.yaml", overrides, ClusterRef(), folder / "runs", **options  # type: ignore[arg-type]
    )  # fmt: skip


def init_from(spec: LaunchSpec) -> str | None:
    assert isinstance(spec.job, Job) and spec.job.checkpoint
    return spec.job.checkpoint.init_from


@pytest.mark.parametrize(
    ("reference", "step"), [("run:pretrain", 6), ("run:pretrain@best", 4), ("run:pretrain@2", 2)]
)
def test_a_reference_becomes_the_folder_of_a_whole_checkpoint(
    tmp_path: Path, pretrain: RunDir, reference: str, step: int
) -> None:
    found = init_from(plan(tmp_path, f"checkpoint.init_from={reference}"))
    assert found == str(pretrain.folder / "checkpoints" / str(step))


def test_the_newest_of_equally_good_checkpoints_is_the_best(
    tmp_path: Path, pretrain: RunDir
) -> None:
    save(pretrain, 7, eval_loss=2.0)
    found = init_from(plan(tmp_path, "checkpoint.init_from=run:pretrain@best"))
    assert found == str(pretrain.folder / "checkpoints" / "7")


@pytest.mark.parametrize(
    ("overrides", "messages"),
    [
        (["checkpoint.init_from=run:pretrian"],
         ["run:pretrian: pretrian: no run of this name", "Did you mean 'pretrain'?"]),
        (["checkpoint.init_from=run:pretrain@5"],
         ["no whole checkpoint of step 5. Whole ones: 6, 4, 2",
          "still running: wait for its end with `after: [pretrain]`"]),
        (["checkpoint.init_from=run:pretrain@8"], ["step 8 (data has 0 bytes, expected 1)"]),
        (["checkpoint.init_from=run:bare"], ["no checkpoint. Whole ones: none"]),
        (["checkpoint.init_from=run:bare@best"], ["no checkpoint has an evaluation loss"]),
        (["checkpoint.init_from=run:tuned"],
         ["contains only adapters. Export it (launch checkpoints export run:tuned --to DIR)"]),
        (["after=[nowhere]"], ["override after=[nowhere]: nowhere: no run of this name"]),
        (["after=[small]"], ["a circle, so that none can start: small waits for small"]),
        (["after=[nowhere]", "checkpoint.init_from=run:x"], ["nowhere: no run", "x: no run"]),
    ],
)  # fmt: skip
def test_what_does_not_exist_is_explained_before_the_start(
    tmp_path: Path, pretrain: RunDir, overrides: list[str], messages: list[str]
) -> None:
    make_run(tmp_path, "bare").close()
    tuned = make_run(tmp_path, "tuned")
    save(tuned, 3, base=BASE)
    tuned.close()
    with pytest.raises(ConfigError) as caught:
        plan(tmp_path, *overrides)
    assert all(message in str(caught.value) for message in messages), caught.value


def test_weights_of_another_model_are_explained_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "exported"
    folder.mkdir()
    job = plan(tmp_path).job
    assert isinstance(job, Job)
    (folder / CONFIG).write_text(json.dumps(make(job, "float32")))
    override = "checkpoint.init_from=exported"
    assert init_from(plan(tmp_path, override)) == "exported"
    with pytest.raises(ConfigError) as caught:
        plan(tmp_path, override, "model.layers=3", "model.tied_embeddings=false")
    assert caught.value.lines == [
        f"override {override}: {folder / CONFIG}: {problem}"
        for problem in (
            "num_hidden_layers is 1, but the job's model.layers is 3",
            "tie_word_embeddings is true, but the job's model.tied_embeddings is false",
        )
    ]


def test_runs_that_wait_for_each_other_are_a_circle(tmp_path: Path, pretrain: RunDir) -> None:
    RunDir.create(plan(tmp_path, "name=first", "after=[pretrain]")).close()
    RunDir.create(plan(tmp_path, "name=second", "after=[first]")).close()
    with pytest.raises(ConfigError, match="first waits for second waits for first"):
        plan(tmp_path, "name=first", "after=[second]")


def test_a_checkpoint_of_a_run_that_is_awaited_is_found_later(
    tmp_path: Path, pretrain: RunDir
) -> None:
    spec = plan(tmp_path, "after=[pretrain]", "checkpoint.init_from=run:pretrain@9")
    assert init_from(spec) == "run:pretrain@9"
    save(pretrain, 9)
    end(pretrain, RunState.FINISHED)
    ready = wait_for_runs(spec, print)
    assert init_from(ready) == str(pretrain.folder / "checkpoints" / "9")
    assert ready.job.after == ()


def test_a_run_that_another_launch_starts_first_may_be_missing(tmp_path: Path) -> None:
    overrides = ("after=[first]", "checkpoint.init_from=run:first@best")
    assert init_from(plan(tmp_path, *overrides, upcoming={"first"})) == "run:first@best"


def test_the_wait_reports_what_it_waits_for_until_that_has_finished(
    tmp_path: Path, pretrain: RunDir
) -> None:
    spec, texts = plan(tmp_path, "after=[pretrain]"), []

    def on_status(text: str) -> None:
        texts.append(text)
        end(pretrain, RunState.FINISHED)

    wait_for_runs(spec, on_status)
    assert texts == ["waiting for pretrain, which is provisioning"]


@pytest.mark.parametrize(
    ("finish", "message"),
    [
        (lambda run: end(run, RunState.FAILED, "host-0000 exited with code 1"),
         "cancelled: pretrain failed.*: host-0000 exited with code 1"),
        (lambda run: end(run, RunState.STOPPED), "cancelled: pretrain was stopped"),
        (lambda run: end(run, RunState.CANCELLED, "x failed"), "pretrain was cancelled: x failed"),
        (lambda run: run.close(), "cancelled: pretrain was lost"),
        (lambda run: run.folder.rename(run.folder.with_name("away")), "no run of this name"),
    ],
)  # fmt: skip
def test_a_run_is_cancelled_when_one_before_it_does_not_finish(
    tmp_path: Path, pretrain: RunDir, finish: Callable[[RunDir], object], message: str
) -> None:
    spec = plan(tmp_path, "after=[pretrain]")
    finish(pretrain)
    with pytest.raises(CancelledError, match=message) as caught:
        wait_for_runs(spec, print)
    assert caught.value.exit_code == 1


def test_a_run_is_cancelled_when_its_checkpoint_was_never_saved(
    tmp_path: Path, pretrain: RunDir
) -> None:
    spec = plan(tmp_path, "after=[pretrain]", "checkpoint.init_from=run:pretrain@9")
    end(pretrain, RunState.FINISHED)
    with pytest.raises(CancelledError, match=r"init_from: run:pretrain@9: .*Whole ones: 6, 4, 2"):
        wait_for_runs(spec, print)


def test_the_wait_ends_at_its_deadline(tmp_path: Path, pretrain: RunDir) -> None:
    spec = plan(tmp_path, "after=[pretrain]", "deadlines.after_s=0.1")
    with pytest.raises(CancelledError, match=r"waiting for pretrain.*\(deadlines.after_s\)"):
        wait_for_runs(spec, print)


def test_no_other_run_is_looked_for_without_after(tmp_path: Path) -> None:
    spec = plan(tmp_path)
    assert wait_for_runs(replace(spec, run_dir=tmp_path / "nowhere" / "x"), print).job == spec.job
