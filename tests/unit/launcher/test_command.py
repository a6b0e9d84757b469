"""A job that runs any program: what is planned, what each process gets, what is shown."""

import io
import json
import os
import sys
from pathlib import Path

import pytest
from rich.console import Console

from launcher.chains.checkpoints import find_folder
from launcher.commands.plan_result import plan_result
from launcher.core.json_output import to_json
from launcher.core.states import RunState
from launcher.executors.resume_point import Resumed, plan_resume
from launcher.gang.agent import add
from launcher.planning.command import CommandLaunch
from launcher.runs.directory import RunDir
from launcher.runs.folder import RunFolderError
from launcher.ui.plan_view import print_plan
from tests.support.launch_plans import command_launch
from trainer.contract.config.loader import ConfigError
from trainer.contract.planning.plan import BasePlan
from trainer.contract.protocol.environment import PLUGIN_DIR

BIN = str(Path(sys.executable).parent)
WITH_ENV = """\
name: any
command: [python, my_script.py]
env: {DATA: /data, PATH: /opt/bin, PYTHONPATH: src, XLA_FLAGS: --xla_dump_to=/tmp/x}
"""


def test_every_process_runs_the_command_as_it_is_written(tmp_path: Path) -> None:
    launch = command_launch(tmp_path, cluster="tpu-v4-8")
    assert [launch.command(p) for p in range(2)] == [["python", "my_script.py"]] * 2
    assert launch.standby_command(0, check=True) is None


def test_a_process_gets_the_contract_and_where_python_is(tmp_path: Path) -> None:
    launch = command_launch(tmp_path)
    assert launch.environment(0) == {
        "SLIPWAY_NUM_PROCESSES": "1",
        "SLIPWAY_PROCESS_ID": "0",
        "SLIPWAY_RUN_DIR": str(tmp_path / "runs" / "any"),
        "SLIPWAY_ATTEMPT": "1",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "PATH": BIN,
        "PYTHONPATH": str(PLUGIN_DIR),
    }


def test_nothing_that_other_libraries_believe_is_said(tmp_path: Path) -> None:
    names = command_launch(tmp_path).environment(0)
    others = ("SLURM_", "OMPI_", "PMI_", "PMIX_", "MPI_", "RANK", "WORLD_SIZE", "MASTER_", "TPU_")
    assert [name for name in names if name.startswith(others)] == []


def test_the_jobs_own_variables_are_added_and_its_paths_go_first(tmp_path: Path) -> None:
    environment = command_launch(tmp_path, WITH_ENV).environment(0)
    assert environment["DATA"] == "/data"
    assert environment["PATH"] == f"/opt/bin:{BIN}"
    assert environment["PYTHONPATH"] == f"src:{PLUGIN_DIR}"
    assert environment["XLA_FLAGS"].split() == [
        "--xla_dump_to=/tmp/x",
        "--xla_force_host_platform_device_count=2",
    ]


def test_on_a_host_search_paths_are_joined_and_other_variables_replaced() -> None:
    host = {"PATH": "/usr/bin", "HOME": "/root", "JAX_PLATFORMS": "tpu"}
    added = {"PATH": "/opt", "PYTHONPATH": "/shim", "JAX_PLATFORMS": "cpu"}
    assert add(added, host) == {
        "PATH": "/opt:/usr/bin",
        "PYTHONPATH": "/shim",
        "HOME": "/root",
        "JAX_PLATFORMS": "cpu",
    }


def test_there_is_nothing_to_hold_save_or_lack(tmp_path: Path) -> None:
    launch = command_launch(tmp_path, cluster="tpu-v4-32")
    assert (launch.steps, launch.saves, launch.host_memory) == (None, False, None)
    assert (launch.storage_problem, launch.corpus_sha256) == ("", None)
    assert launch.grace_s == 30.0


def printed(launch: CommandLaunch) -> str:
    text = io.StringIO()
    print_plan(Console(file=text, width=200), launch, shardings=True)
    return text.getvalue()


def test_the_plan_shows_hosts_environment_and_command(tmp_path: Path) -> None:
    text = printed(command_launch(tmp_path, cluster="tpu-v4-32"))
    assert "any on tpu-v4-32: 4 hosts x 4 devices of v4-32, torus 2x2x4" in text
    assert f'PATH={BIN}:"$PATH" \\' in text
    assert "JAX_COORDINATOR_ADDRESS=" in text
    assert text.rstrip().endswith("python my_script.py")
    assert "mesh" not in text


def test_the_plan_as_json_has_all_processes(tmp_path: Path) -> None:
    plan = to_json(plan_result(command_launch(tmp_path, cluster="tpu-v4-32")))
    assert [p["environment"]["SLIPWAY_PROCESS_ID"] for p in plan["processes"]] == list("0123")
    assert plan["plan"]["world"]["devices_per_host"] == 4
    assert plan["job"]["command"] == ["python", "my_script.py"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    launch = command_launch(tmp_path)
    with RunDir.create(launch) as made:
        made.set_state(RunState.FAILED)
    return launch.run_dir


def resumed(folder: Path, *overrides: str) -> Resumed:
    with RunDir.open(folder) as run:
        return plan_resume(run, overrides, run.cluster_ref)


def test_its_run_is_on_disk_as_any_other(run: Path) -> None:
    plan = BasePlan.model_validate_json((run / "plans" / "0001.json").read_text())
    assert plan.world.processes == 1
    assert "steps" not in json.loads((run / "state.json").read_text())


def test_a_resumed_run_starts_the_command_again(run: Path) -> None:
    again = resumed(run, "env.MORE=yes")
    assert again.launch.environment(0)["SLIPWAY_ATTEMPT"] == "2"
    assert again.launch.environment(0)["MORE"] == "yes"
    assert not again.is_complete
    with pytest.raises(ConfigError, match="a run keeps its name"):
        resumed(run, "name=other")


def test_a_program_that_has_finished_is_complete(run: Path) -> None:
    with RunDir.open(run) as made:
        made.set_state(RunState.FINISHED)
    assert resumed(run).is_complete


def test_its_checkpoints_are_not_slipways_to_list(run: Path) -> None:
    with pytest.raises(RunFolderError, match="its job is a command"):
        find_folder("any", run.parent)


def test_the_jobs_that_come_with_slipway_can_be_planned(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    text = (root / "jobs" / "sum_devices.yaml").read_text()
    launch = command_launch(tmp_path, text)
    assert os.access(root / launch.command(0)[1], os.R_OK)
