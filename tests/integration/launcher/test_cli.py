"""The `launch` command as a person meets it: what it says, and with which exit code it ends."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from launcher.cli.app import app
from tests.support.cli import JOB, ROOT, launch
from tests.support.worlds import mesh_of

LONG = "x" * 300
"""Longer than the name of a file can be."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.yaml"], "missing.yaml: no such file"),
        (["job.yaml", "optimizer.learning_rte=1"], "Did you mean 'learning_rate'?"),
        (["job.yaml", "steps=-3"], "override steps=-3: expected a whole number of at least 1"),
        (["job.yaml", "data.global_batch=15"], "15 is not divisible by data 1 x fsdp 2 = 2"),
        (["job.yaml", "mesh.tensor=3"], "tensor 3 does not divide the 2 devices"),
        (["job.yaml", "data.source=stdlibb"], "Did you mean 'stdlib'?"),
        (["job.yaml", "data.source=text"], "source 'text' needs a path"),
        (["-c", "tpu-v4-33", "job.yaml"], "--cluster tpu-v4-33: unknown cluster. Known: "),
        (["-c", "", "job.yaml"], "--cluster '': unknown cluster. Known: "),
        (["-c", "tpu-v4-32", "--simulate-hosts", "3", "job.yaml"], "hosts 3: no v4 slice has 3"),
        (["plna", "job.yaml"], "'plna' is neither a command nor a job file. Did you mean 'plan'?"),
        (["job.yaml", "--simulat"], "--simulate"),
        ([LONG], "is neither a command nor a job file"),
        (["job.yaml", f"sample.prompt={LONG}", "seed=-1"], "override seed=-1: expected a whole"),
        (["status", LONG], f"{LONG}: no run of this name in runs"),
        (["status", ""], "expected a run's name or the path of its folder, found an empty text"),
        (["checkpoints", LONG], f"{LONG}: no run of this name in runs"),
        (["rehearse", "job.yaml", "--days", "inf"], "should be less than or equal to 36500"),
        (["rehearse", "job.yaml", "--step-time", "inf"], "expected a finite number, found inf"),
        (["sample", "x", "--prompt", "", "--temperature", "inf"], "expected a finite number"),
    ],
)
def test_bad_input_is_explained_and_starts_nothing(folder: Path, arguments, message) -> None:
    result = launch(folder, *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert [path.name for path in folder.iterdir()] == ["job.yaml"]


def test_problems_of_job_and_cluster_are_reported_together(folder: Path) -> None:
    result = launch(folder, "-c", "nowhere", "job.yaml", "seed=x", "data.seq_len=0")
    assert result.returncode == 2
    for problem in ("--cluster nowhere", "override seed=x", "override data.seq_len=0"):
        assert problem in result.stderr


def test_hosts_that_are_machines_of_their_own_need_a_storage(folder: Path) -> None:
    result = launch(folder, "-c", "tpu-v4-32", "job.yaml")
    assert result.returncode == 2
    assert "storage: missing in job.yaml and in " in result.stderr
    assert "tpu-v4-32.yaml" in result.stderr
    assert not (folder / "runs").exists()
    plan = launch(folder, "plan", "-c", "tpu-v4-32", "job.yaml")
    assert plan.returncode == 0
    assert "warning: storage: missing" in plan.stdout


def test_a_pod_is_not_on_this_machine(folder: Path) -> None:
    result = launch(folder, "-c", "v4-32", "job.yaml")
    assert result.returncode == 3
    assert "v4-32 has 4 hosts" in result.stderr
    assert not (folder / "runs").exists()


def test_a_simulation_that_this_machine_cannot_hold_is_refused(folder: Path) -> None:
    result = launch(folder, "-c", "v4-2048", "--simulate", "job.yaml", "data.global_batch=1024")
    assert result.returncode == 3
    assert "simulating 256 hosts needs about" in result.stderr
    assert "--simulate-hosts" in result.stderr
    assert not (folder / "runs").exists()


def test_a_dry_run_is_the_plan(folder: Path) -> None:
    plan = launch(folder, "plan", "-c", "tpu-v4-32", "--simulate", "job.yaml")
    dry_run = launch(folder, "-c", "tpu-v4-32", "--simulate", "job.yaml", "--dry-run")
    assert plan.returncode == dry_run.returncode == 0
    assert plan.stdout == dry_run.stdout
    assert "data 1 x fsdp 16 x tensor 1" in plan.stdout
    assert not (folder / "runs").exists()


def test_enormous_sizes_are_planned_without_a_hang(folder: Path) -> None:
    sizes = ["data.seq_len=1000000000000", "model.layers=1000000000"]
    assert launch(folder, "plan", "job.yaml", *sizes).returncode == 0


def test_the_plan_as_json_holds_what_would_be_started(folder: Path) -> None:
    result = launch(
        folder, "plan", "-c", "tpu-v4-32", "--simulate", "job.yaml", "mesh.tensor=2", "-o", "json"
    )
    plan = json.loads(result.stdout)
    assert plan["plan"]["mesh"] == mesh_of(fsdp=8, tensor=2)
    assert [process["host"] for process in plan["processes"]] == [0, 1, 2, 3]
    environment = plan["processes"][3]["environment"]
    assert environment["SLIPWAY_PROCESS_ID"] == "3"
    assert "device_count=4" in environment["XLA_FLAGS"]
    assert plan["processes"][3]["command"][-1].endswith("runs/tiny/job.yaml")


def test_the_plan_says_how_fast_a_real_accelerator_can_be_at_best(folder: Path) -> None:
    words = ["plan", "-c", "tpu-v4-32", "job.yaml"]
    assert "at best" in launch(folder, *words).stdout
    plan = json.loads(launch(folder, *words, "-o", "json").stdout)
    bounds = plan["bounds"]
    assert plan["flops"]["program"] == plan["flops"]["model"] > 0
    assert bounds["step_s"] == max(bounds["compute_s"], bounds["hbm_s"], bounds["link_s"])


def test_the_plan_says_how_stages_take_micro_batches(folder: Path) -> None:
    stages = ["mesh.pipeline=2", "mesh.pipeline_schedule=1f1b", "model.remat=full"]
    batch = ["data.global_batch=64", "data.grad_accum_steps=4"]
    plan = launch(folder, "plan", "-c", "tpu-v4-32", "job.yaml", *stages, *batch)
    assert "2 at a time in 4 micro-batches through 2 stages by 1f1b, which are" in plan.stdout


def test_of_simulated_devices_the_plan_says_nothing_of_the_kind(folder: Path) -> None:
    words = ["plan", "-c", "tpu-v4-32", "--simulate", "job.yaml"]
    assert "at best" not in launch(folder, *words).stdout
    assert json.loads(launch(folder, *words, "-o", "json").stdout)["bounds"] is None


def test_the_plan_lists_every_parameter_on_request(folder: Path) -> None:
    result = launch(folder, "plan", "job.yaml", "--shardings")
    assert "layers.attention.query.kernel" in result.stdout
    assert "64 embed=fsdp" in result.stdout


def test_one_array_is_drawn_and_unknown_name_lists_nearest(folder: Path) -> None:
    words = ["plan", "-c", "tpu-v4-32", "--simulate", "job.yaml", "mesh.tensor=2", "--draw"]
    drawn = launch(folder, *words, "layers.mlp.gate.kernel").stdout
    assert "layers.mlp.gate.kernel" in drawn and "16 parts" in drawn
    refused = launch(folder, *words, "layers.mlp.gates.kernel")
    assert refused.returncode == 2
    assert "near it are layers.mlp.gate.kernel" in refused.stderr


def test_the_plan_knows_the_corpus_by_its_hash(folder: Path) -> None:
    result = launch(folder, "plan", "job.yaml", "-o", "json")
    assert len(json.loads(result.stdout)["plan"]["corpus"]["sha256"]) == 64


def test_the_plan_warns_where_the_state_alone_does_not_fit(folder: Path) -> None:
    result = launch(
        folder, "plan", "-c", "tpu-v4-8", "--simulate", "job.yaml", "model.preset=llama3-70b"
    )
    assert result.returncode == 0
    assert "does not fit" in result.stdout


def test_help_lists_every_command_once_on_a_line_of_its_own(folder: Path) -> None:
    result = launch(folder, "--help")
    assert result.returncode == 0
    listed = re.findall(r"^  ([a-z]+) {2,}\S", result.stdout, re.MULTILINE)
    assert sorted(listed) == sorted(vars(typer.main.get_command(app))["commands"])
    assert "..." not in result.stdout.partition("Run:")[2]


def test_the_command_imports_neither_jax_nor_ray() -> None:
    code = "import sys, launcher.cli.app; print({'jax', 'ray', 'flax', 'grain'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.stdout.strip() == "set()"


def test_ctrl_c_during_the_imports_leaves_no_traceback() -> None:
    code = (
        "import os, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'launcher.cli.app': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from launcher.__main__ import main\n"
        "main()"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (-signal.SIGINT, "")


def test_planning_imports_neither_jax_nor_ray() -> None:
    code = (
        "import sys; sys.argv = ['launch', 'plan', 'jobs/quickstart.yaml', '-o', 'json']\n"
        "from launcher.cli.app import app\n"
        "try: app()\n"
        "except SystemExit: pass\n"
        "print({'jax', 'ray', 'flax', 'grain'} & set(sys.modules), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.stderr.strip() == "set()"
