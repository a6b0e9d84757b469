"""`launch audit`: what it refuses before anything starts, and how it keeps its verdicts."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from launcher.audit import result as results
from launcher.audit.differences import FirstDifference, Quantity
from launcher.audit.recorded import read_recorded
from launcher.audit.result import AuditKind, AuditResult
from launcher.commands.audit import AuditOptions, audit_run
from launcher.core.errors import UsageError
from launcher.core.states import RunState
from launcher.report.page import report
from launcher.runs.run_record import read_record
from tests.support.checkpoint_metadata_builders import about_of
from tests.support.launch_plans import COMMAND_JOB
from tests.support.run_folders import add_steps, make_run
from trainer.contract.config.job import Job
from trainer.contract.config.loader import load

LOCAL = (None, False, None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished run of 6 steps, with checkpoints of steps 3 and 6 by other code and data."""
    with make_run(tmp_path, steps=6) as run:
        run.set_state(RunState.RUNNING)
        add_steps(run, *range(1, 7))
        job = load(run.folder / "job.yaml", Job).value
        for step in (3, 6):
            add_checkpoint(run.folder, job, step)
        run.set_state(RunState.FINISHED)
    return run.folder


def add_checkpoint(folder: Path, job: Job, step: int) -> None:
    path = folder / "checkpoints" / str(step)
    path.mkdir(parents=True)
    (path / "about.json").write_text(about_of(job, step).model_dump_json())


def refusal(folder: Path, steps: str | None = None, *overrides: str, where: Any = LOCAL) -> str:
    options = AuditOptions(steps, where, overrides, other_code=False, as_json=True)
    with pytest.raises(UsageError) as raised:
        audit_run(folder, options)
    assert not (folder / "audits").exists()
    return str(raised.value)


def test_other_data_and_other_code_are_both_named(folder: Path) -> None:
    corpus, code = refusal(folder).splitlines()
    assert corpus.startswith("the data of small is missing: it was trained on a corpus with the ha")
    assert "aaaaaaaaaaaa" in corpus
    assert code.startswith("the code of small is missing: its hash is cccccccccccc")
    assert "--other-code" in code


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("2-3", "no whole checkpoint of small is older than step 2. Whole ones in "),
        ("2-3", "/checkpoints: 3, 6. Begin after one of them, or at step 1"),
        ("5-9", "small has not recorded 3 of these steps, first 7. Recorded: steps 1 to 6"),
        ("7", "small has not recorded step 7. Recorded: steps 1 to 6"),
        ("3-2", "--steps: expected FIRST-LAST, such as 400-420, found '3-2'"),
        ("0-2", "--steps: expected FIRST-LAST, such as 400-420, found '0-2'"),
        ("all", "--steps: expected FIRST-LAST, such as 400-420, found 'all'"),
    ],
)
def test_steps_that_cannot_be_replayed_say_what_is_missing(
    folder: Path, steps: str, message: str
) -> None:
    assert message in refusal(folder, steps)


def test_change_of_the_job_among_the_steps_is_named(folder: Path) -> None:
    job = load(folder / "job.yaml", Job).value
    rate = job.optimizer.model_copy(update={"learning_rate": 0.5})
    add_checkpoint(folder, job.model_copy(update={"optimizer": rate}), 5)
    message = refusal(folder, "4-6")
    assert "its job changed before step 6 (optimizer.learning_rate: 0.5 ->" in message


def test_override_that_changes_more_than_rounding_is_refused(folder: Path) -> None:
    message = refusal(folder, "4-6", "optimizer.learning_rate=1", "mesh.tensor=1", "seed=2")
    assert [line.partition(":")[0] for line in message.splitlines()] == [
        "optimizer.learning_rate=1",
        "seed=2",
    ]


@pytest.mark.parametrize(
    ("provider", "remedy"),
    [
        ("kind: ssh, hosts: [one, two], user: me", "(provider: {kind: attach, address: auto})"),
        ("kind: attach, address: 'http://head:8265'", "(provider: {kind: attach, address: auto})"),
        ("kind: slurm", "in an allocation of Slurm (salloc)"),
    ],
)
def test_cluster_that_its_own_host_drives_is_refused_with_a_remedy(
    folder: Path, tmp_path: Path, provider: str, remedy: str
) -> None:
    cluster = tmp_path / "far.yaml"
    cluster.write_text(
        f"{{accelerator: cpu, hosts: 2, devices_per_host: 1, provider: {{{provider}}}}}"
    )
    message = refusal(folder, where=(str(cluster), False, None))
    assert "far.yaml: one of its hosts drives its runs, and" in message
    assert remedy in message


def test_checkpoints_on_another_machine_are_missing_not_ignored(folder: Path) -> None:
    shutil.rmtree(folder / "checkpoints")
    event = {"event": "checkpoint_saved", "process": 0, "step": 3, "attempt": 1}
    with (folder / "events.jsonl").open("a") as events:
        events.write(json.dumps(event) + "\n")
    message = refusal(folder)
    assert "--steps 1-6" in message
    assert f"no whole checkpoint is in {folder}/checkpoints, and the run has saved 1" in message


def test_versions_of_all_attempts_that_computed_the_steps_count(folder: Path) -> None:
    """A run may continue with another JAX: a difference is then no corruption."""
    with (folder / "events.jsonl").open("a") as events, (folder / "metrics.jsonl").open("a") as log:
        for attempt, version in ((1, "1"), (2, "2")):
            versions = {"jax": version}
            started = {"event": "started", "process": 0, "attempt": attempt, "versions": versions}
            events.write(json.dumps({**started, "code": "c" * 64}) + "\n")
        log.write(json.dumps({"step": 6, "loss": 4.4, "attempt": 2}) + "\n")
    found = [read_recorded(read_record(folder), steps).programs for steps in ((4, 6), (4, 5))]
    of_both, of_first = ([one.versions["jax"] for one in programs] for programs in found)
    assert (of_both, of_first) == (["1", "2"], ["1"])


def test_run_without_recorded_steps_or_of_a_command_is_refused(tmp_path: Path) -> None:
    with make_run(tmp_path, "empty") as run:
        pass
    assert "empty: no step is recorded" in refusal(run.folder)
    (run.folder / "job.yaml").write_text(COMMAND_JOB)
    assert "this run's job is a command" in refusal(run.folder)


def test_verdicts_are_kept_and_shown_in_the_report(folder: Path) -> None:
    bad = result_of(
        AuditKind.CORRUPT_HOST, difference=FirstDifference(5, Quantity.STATE, ("<b>[1]",))
    )
    assert results.write(result_of(AuditKind.EQUAL), folder).name == "0001.json"
    assert results.write(bad, folder).name == "0002.json"
    (folder / "audits" / "0003.json").write_text("{torn")
    assert [one.kind for one in results.read_all(folder)] == [
        AuditKind.CORRUPT_HOST,
        AuditKind.EQUAL,
    ]
    assert results.read_all(folder)[0] == bad
    page = report([read_record(folder)], now=0.0)
    assert "<strong>the verdict corrupt_host</strong>" in page
    assert "&lt;b&gt;[1]" in page
    assert "the verdict equal" in page


def result_of(kind: AuditKind, **fields: Any) -> AuditResult:
    return AuditResult(
        run="small", time=0.0, first_step=4, last_step=6, start_step=3, checkpoints=(6,),
        cluster="local", mesh={"fsdp": 1}, changes=(), run_versions={"jax": "1"},
        replay_versions={"jax": "1"}, hosts=4, moved=True, replays=5, kind=kind,
        text=f"the verdict {kind}", **fields,
    )  # fmt: skip
