"""The JSON and the exit codes of commands, compared with files: what scripts rely on.

After an intended change, run this file with SLIPWAY_WRITE_GOLDEN=1 and read the difference.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.core.states import RunState
from tests.support.checkpoint_metadata_builders import about_of
from tests.support.cli import launch
from tests.support.launch_plans import COMMAND_JOB, JOB
from tests.support.run_folders import add_log, add_steps, make_run
from tests.support.worlds import tiny_job

GOLDEN = Path(__file__).with_name("golden")
ROOT = Path(__file__).parents[3]
BIN = str(Path(sys.executable).parent)
FILES = {
    "small.yaml": JOB.replace("source: stdlib", "source: text, path: text/*.txt"),
    "any.yaml": COMMAND_JOB,
    "wrong.yaml": JOB.replace("layers: 1", "layers: none").replace("steps: 2", "step: 2"),
    "text/a.txt": "text of a " * 100,
}
COMMANDS = {
    "plan_local": ["plan", "small.yaml"],
    "plan_pod": ["plan", "small.yaml", "--cluster", "tpu-v4-32", "data.global_batch=16"],
    "plan_command": ["plan", "any.yaml", "--cluster", "gpu-h100-16"],
    "plan_of_a_wrong_job": ["plan", "wrong.yaml"],
    "plan_without_a_job": ["plan", "absent.yaml"],
    "plan_on_no_cluster": ["plan", "small.yaml", "--cluster", "absent"],
    "rehearse": [
        "rehearse",
        "small.yaml",
        "steps=90000",
        "--cluster",
        "tpu-v4-32",
        "data.global_batch=16",
        "--step-time",
        "2",
        "--draws",
        "4",
        "--faults",
        "host 1/5h, process 1/day, hang 1/day",
    ],
    "rehearse_wrong_rates": ["rehearse", "small.yaml", "--faults", "hots 1/h, hang 1/year"],
    "list": ["list"],
    "list_cost": ["list", "--cost"],
    "status": ["status", "small"],
    "status_of_a_failed_run": ["status", "broken"],
    "status_of_no_run": ["status", "absent"],
    "why": ["why", "small"],
    "why_of_a_failed_run": ["why", "broken"],
    "why_of_no_run": ["why", "absent"],
    "logs": ["logs", "small"],
    "checkpoints": ["checkpoints", "list", "small"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of each kind, and a run that has finished and one that has failed."""
    folder = tmp_path_factory.mktemp("golden")
    with make_run(folder, "small", steps=3) as run:
        run.set_state(RunState.RUNNING)
        add_steps(run, 1, 2, 3)
        add_log(run, 0, b"the first line\nthe second\n")
        add_checkpoint(run.folder / "checkpoints" / "3")
        run.set_state(RunState.FINISHED)
    with make_run(folder, "broken") as run:
        run.set_state(RunState.FAILED, reason="host-0001 exited with code 1")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


def add_checkpoint(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "data").write_bytes(b"x" * 1000)
    about = about_of(tiny_job(), step=3, files={"data": 1000}, eval_loss=2.25)
    (folder / "about.json").write_text(about.model_dump_json())


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_the_json_and_has_the_exit_code_of_its_file(
    folder: Path, name: str
) -> None:
    environment = {"XDG_STATE_HOME": str(folder / "state")}
    ended = launch(folder, *COMMANDS[name], "-o", "json", environment=environment)
    found = {"code": ended.returncode, "json": masked(parsed(ended.stdout), folder)}
    path = GOLDEN / f"{name}.json"
    if os.environ.get("SLIPWAY_WRITE_GOLDEN"):
        path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    assert found == json.loads(path.read_text()), ended.stderr


def parsed(text: str) -> Any:
    """Returns the JSON of a command; a list where it prints a document on each line."""
    try:
        return json.loads(text) if text else None
    except ValueError:
        return [json.loads(line) for line in text.splitlines()]


def masked(found: Any, folder: Path) -> Any:
    """Returns it with times, durations and this machine's folders replaced by words."""
    match found:
        case {"parts_s": dict(parts)}:
            return {"parts_s": sorted(parts)}
        case {"seconds": float(), "share": float()}:
            return sorted(found)
        case {"wall_s": float()}:
            return masked({**found, "wall_s": "TIME"}, folder)
        case dict():
            return {key: masked(value, folder) for key, value in found.items()}
        case list():
            return [masked(value, folder) for value in found]
        case float() if found > 1e9:
            return "TIME"
        case str():
            for path, word in {str(folder): "FOLDER", BIN: "BIN", str(ROOT): "ROOT"}.items():
                found = found.replace(path, word)
            return found
        case _:
            return found
