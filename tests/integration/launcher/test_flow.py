"""`launch flow` before anything runs: wrong input, and what each step waits for."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from launcher.cli.app import app
from launcher.cli.flow_commands import parse_step_command
from launcher.cluster.schema import ClusterRef
from launcher.commands.flow_plan import FlowPlan, plan_flow
from launcher.commands.flow_steps import FlowRequest
from launcher.runs.directory import RunDir
from tests.support.cli import launch
from tests.support.launch_plans import JOB
from trainer.contract.config.loader import ConfigError

TUNE = JOB.replace("name: small", "name: tune") + (
    "lora: {rank: 2}\ncheckpoint: {init_from: run:base@best}\n"
)
FLOW = """\
name: chain
steps:
  - name: out
    launch: [checkpoints, export, run:tune@best, --to, exported]
  - job: tune.yaml
  - {job: job.yaml, name: base, overrides: {steps: 3}}
  - {name: text, launch: [sample, base, --prompt, "--to"], after: [out]}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "job.yaml").write_text(JOB)
    (tmp_path / "flows" / "tune.yaml").write_text(TUNE)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    return tmp_path


def write(folder: Path, *steps: str) -> None:
    lines = "".join(f"  - {step}\n" for step in steps)
    (folder / "flows" / "flow.yaml").write_text(f"name: chain\nsteps:\n{lines}")


def plan(folder: Path) -> FlowPlan:
    return plan_flow(
        FlowRequest(
            flow_file=Path("flows/flow.yaml"),
            cluster_ref=ClusterRef(),
            runs=folder / "runs",
            parse_command=lambda args: parse_step_command(app, args),
        )
    )


def problems(folder: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        plan(folder)
    return caught.value.lines


def test_steps_wait_for_all_that_they_refer_to(folder: Path) -> None:
    (folder / "flows" / "flow.yaml").write_text(FLOW)
    found = plan(folder)
    assert [(step.name, step.needs) for step in found.steps] == [
        ("base", ()),
        ("tune", ("base",)),
        ("out", ("tune",)),
        ("text", ("out", "base")),
    ]


def test_a_command_is_a_job_that_runs_launch(folder: Path) -> None:
    (folder / "flows" / "flow.yaml").write_text(FLOW)
    spec = plan(folder).steps[-1].plan(folder / "runs", {"out", "base"})
    assert spec.command(0) == [
        *("python", "-m", "launcher", "sample", "--runs", str(folder / "runs")),
        *("base", "--prompt", "--to"),
    ]


BASE = "{job: job.yaml, name: base}"
BAD: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "a circle": (
        ["{job: job.yaml, name: a, after: [b]}", "{job: job.yaml, name: b, after: [a]}"],
        ["flows/flow.yaml:3: a circle, so that none can start: a waits for b waits for a"],
    ),
    "unknown names": (
        [BASE, "{job: job.yaml, name: b, after: [bse]}",
         "{name: c, launch: [checkpoints, export, bas, --to, new]}"],
        ["flows/flow.yaml:4: b: no step is named bse. Did you mean 'base'?",
         "flows/flow.yaml:5: c: no step is named bas. Did you mean 'base'?"],
    ),
    "a missing run": (
        ["{job: tune.yaml}"],
        ["flows/flow.yaml:3: tune: no step is named base. base: no run of this name in "],
    ),
    "the same name": (
        [BASE, BASE],
        ["flows/flow.yaml:4: the step of flows/flow.yaml:3 is also named base."],
    ),
    "missing files": (
        ["{job: jb.yaml}", "{job: job.yaml, cluster: nowhere}"],
        ["flows/flow.yaml:3: job: flows/jb.yaml: no such file. Did you mean 'job.yaml'?",
         "--cluster nowhere: unknown cluster."],
    ),
    "wrong overrides": (
        ["{job: job.yaml, overrides: {stps: 3, steps: many}}"],
        ["flows/flow.yaml:3: stps: unknown key. Did you mean 'steps'?",
         "flows/flow.yaml:3: steps: expected a whole number"],
    ),
    "wrong commands": (
        ["{name: a, launch: [resume, base]}", "{name: b, launch: [checkpoints, export, base]}",
         "{name: c, launch: [sample, 'run:base@x', --prompt, x]}"],
        ["flows/flow.yaml:3: launch: expected one of the commands checkpoints export",
         "flows/flow.yaml:4: launch: Missing option '--to'",
         "flows/flow.yaml:5: launch: expected a step or `best` after the @"],
    ),
    "wrong keys": (
        ["{name: a}", "{launch: [report, a], cluster: local}", "{job: job.yaml, aftr: [b]}"],
        ["flows/flow.yaml:3: steps.0: expected one of the keys `job` and `launch`",
         "flows/flow.yaml:4: steps.1: `cluster` is only for jobs; a command needs a `name`",
         "flows/flow.yaml:5: steps.2.aftr: unknown key. Did you mean 'after'?"],
    ),
    "checkpoints that are not saved": (
        ["{job: job.yaml, name: base, overrides: {eval: null}}", "{job: tune.yaml}",
         "{job: tune.yaml, name: more, overrides: {checkpoint.init_from: 'run:tune'}}",
         "{job: tune.yaml, name: less, overrides: {checkpoint.init_from: 'run:base@3'}}",
         "{name: a, launch: [checkpoints, export, tune, --to, new]}",
         "{name: b, launch: [sample, a, --prompt, x]}"],
        ["flows/flow.yaml:4: tune: run:base@best: that job is not evaluated (eval: null)",
         "flows/flow.yaml:5: more: run:tune: that job saves only adapters.",
         "flows/flow.yaml:6: less: run:base@3: that job ends with step 2",
         "flows/flow.yaml:8: b: run:a: that step is a command"],
    ),
    "jobs that do not fit": (
        ["{job: job.yaml, overrides: {mesh.fsdp: 3}}"],
        ["flows/flow.yaml:3: mesh"],
    ),
    "a full folder": (
        [BASE, "{name: a, launch: [checkpoints, export, base, --to, full]}"],
        ["flows/flow.yaml:4: a: full is not empty. Choose another folder"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("steps", "messages"), BAD.values(), ids=BAD)
def test_all_problems_of_a_flow_are_reported_at_once(
    folder: Path, steps: Sequence[str], messages: Sequence[str]
) -> None:
    write(folder, *steps)
    found = problems(folder)
    assert len(found) == len(messages), found
    for message in messages:
        assert any(problem.startswith(message) for problem in found), found


def test_a_flow_without_steps_is_an_error(folder: Path) -> None:
    (folder / "flows" / "flow.yaml").write_text("name: chain\nsteps: []\n")
    assert problems(folder) == [
        "flows/flow.yaml:2: steps: expected at least one step, found an empty list"
    ]


def test_a_bad_flow_starts_nothing_and_exits_with_2(folder: Path) -> None:
    write(folder, "{job: job.yaml, after: [typo]}")
    result = launch(folder, "flow", "flows/flow.yaml")
    assert result.returncode == 2 and "no step is named typo" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (folder / "runs").exists()


def test_a_step_that_was_run_with_another_job_is_an_error(folder: Path) -> None:
    write(folder, BASE)
    RunDir.create(plan(folder).steps[0].plan(folder / "runs")).close()
    plan(folder)
    write(folder, "{job: job.yaml, name: base, overrides: {steps: 3}}")
    (problem,) = problems(folder)
    assert "this step has been run with another job (steps: 2 -> 3)" in problem
