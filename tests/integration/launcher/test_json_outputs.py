"""What commands print with `-o json` is valid by their schemas; and so are their errors."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from launcher.commands.outputs import COMMAND_OUTPUTS
from launcher.core.states import RunState
from tests.support.checkpoint_metadata_builders import about_of
from tests.support.cli import launch
from tests.support.json_outputs import validated, validated_error
from tests.support.launch_plans import COMMAND_JOB, JOB
from tests.support.run_folders import add_events, add_log, add_steps, make_run
from tests.support.worlds import tiny_job

WRONG = JOB.replace("layers: 1", "layers: none").replace("steps: 2", "step: 2")
LOCAL = Path(__file__).parents[2] / "e2e" / "local"
OF_REAL_RUNS = (LOCAL / "test_json_outputs.py", LOCAL / "test_sweep.py")
COMMANDS = [
    ["attach", "small"],
    ["checkpoints", "list", "small"],
    ["checkpoints", "restore-damaged", "small"],
    ["compare", "small", "other"],
    ["debug", "small"],
    ["debug", "failed", "--to", "failed.zip"],
    ["down", "local"],
    ["events", "small"],
    ["init", "new.yaml"],
    ["lineage", "small"],
    ["list"],
    ["logs", "small"],
    ["plan", "small.yaml"],
    ["plan", "any.yaml", "--cluster", "gpu-h100-16"],
    ["plan", "small.yaml", "--cluster", "v4-8", "data.global_batch=16", "--search", "--no-compile"],
    ["plan", "small.yaml", "--draw", "layers.*.kernel"],
    ["rehearse", "small.yaml", "--step-time", "1", "--faults", "host 1/h", "--draws", "2"],
    ["report", "small"],
    ["report", "--all"],
    ["run", "small.yaml", "--dry-run"],
    ["schema", "plan"],
    ["schema", "checkpoints", "list"],
    ["status", "small"],
    ["stop", "small"],
    ["why", "small"],
    ["why", "failed"],
]


def name_of(words: list[str]) -> str:
    two = " ".join(words[:2])
    return two if two in COMMAND_OUTPUTS else words[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Job files, and a finished run with a checkpoint, a damaged one and an event of its own.

    Another run has finished, and one has failed.
    """
    folder = tmp_path_factory.mktemp("outputs")
    with make_run(folder, "small", steps=3) as run:
        run.set_state(RunState.RUNNING)
        add_steps(run, 1, 2, 3)
        add_log(run, 0, b"the first line\nthe \xff second\n")
        add_events(run, {"event": "step", "step": 3, "loss": 4.7, "own": [1]}, {"event": "mine"})
        add_checkpoint(run.folder / "checkpoints" / "3")
        add_checkpoint(run.folder / "checkpoints" / "3.damaged")
        run.set_state(RunState.FINISHED)
    with make_run(folder, "other", steps=3) as run:
        add_steps(run, 1, 2, 3)
        run.set_state(RunState.FINISHED)
    with make_run(folder, "failed") as run:
        add_log(run, 0, b"ValueError: no\n")
        add_events(run, {"event": "error", "message": "ValueError: no"})
        run.set_state(RunState.FAILED, reason="host-0000 exited with code 1")
    (folder / "small.yaml").write_text(JOB)
    (folder / "any.yaml").write_text(COMMAND_JOB)
    (folder / "wrong.yaml").write_text(WRONG)
    return folder


def add_checkpoint(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "data").write_bytes(b"x" * 1000)
    about = about_of(tiny_job(), step=3, files={"data": 1000}, eval_loss=2.25)
    (folder / "about.json").write_text(about.model_dump_json())


def run(folder: Path, *words: str) -> Any:
    environment = {"XDG_STATE_HOME": str(folder / "state")}
    return launch(folder, *words, "-o", "json", environment=environment)


def test_every_command_is_run_here_or_by_the_tests_of_real_runs() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in OF_REAL_RUNS)
    elsewhere = re.findall(r'(?:printed|validated)\("([a-z -]+)"', source)
    assert {*map(name_of, COMMANDS), *elsewhere} == set(COMMAND_OUTPUTS)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_output_is_valid_by_the_schema_of_the_command(folder: Path, words: list[str]) -> None:
    ended = run(folder, *words)
    assert ended.stdout, ended.stderr
    assert validated(name_of(words), ended.stdout) is not None


def test_numbers_that_json_lacks_are_null(folder: Path) -> None:
    with make_run(folder, "diverged") as broken:
        (broken.folder / "metrics.jsonl").write_text('{"step": 1, "loss": NaN, "attempt": 1}\n')
    found = validated("status", run(folder, "status", "diverged").stdout)
    assert (found["step"], found["loss"]) == (1, None)


def test_output_is_ascii_in_any_locale(folder: Path) -> None:
    ended = launch(folder, "init", "größe.yaml", "-o", "json", environment={"LC_ALL": "C"})
    assert ended.stdout.isascii()
    assert json.loads(ended.stdout)["job_file"] == "größe.yaml"


def test_every_problem_has_its_place_and_both_values(folder: Path) -> None:
    ended = run(folder, "plan", "wrong.yaml", "data.seq_len=x")
    assert (ended.returncode, ended.stdout) == (2, "")
    error = validated_error(ended.stderr)
    problems = {one["key"]: one for one in error["problems"]}
    assert list(problems) == ["step", "model.layers", "data.seq_len", "steps"]
    line = 1 + WRONG.splitlines().index("step: 2")
    assert (problems["step"]["file"], problems["step"]["line"]) == ("wrong.yaml", line)
    wrong = problems["model.layers"]
    assert wrong["found"] == "'none'"
    assert wrong["expected"] == "a whole number of at least 1"
    assert problems["data.seq_len"]["override"] == "data.seq_len=x"
    assert problems["data.seq_len"]["file"] is None
    assert problems["steps"]["message"] == "missing"


def test_a_setting_that_does_not_fit_has_its_line(folder: Path) -> None:
    ended = run(folder, "plan", "small.yaml", "--cluster", "v4-32", "mesh.tensor=3")
    (problem, *_) = validated_error(ended.stderr)["problems"]
    assert (ended.returncode, problem["key"]) == (2, "mesh")
    assert problem["override"] == "mesh.tensor=3"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["status", "absent"], "absent: no run of this name"),
        (["list", "--nonsense"], "No such option: --nonsense"),
        (["status"], "Missing argument 'RUN'."),
        (["lst"], "'lst' is neither a command nor a job file. Did you mean 'list'?"),
        (["schema", "lst"], "Did you mean 'list'?"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_error_of_a_command_line_is_one_object(
    folder: Path, words: list[str], message: str
) -> None:
    ended = run(folder, *words)
    assert (ended.returncode, ended.stdout) == (2, "")
    error = validated_error(ended.stderr)
    assert error["exit_code"] == 2
    assert message in error["message"]
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("words", [["-o", "json"], ["-ojson"], ["--output=json"]], ids=" ".join)
def test_every_spelling_of_the_option_has_errors_as_json(folder: Path, words: list[str]) -> None:
    assert validated_error(launch(folder, "status", "absent", *words).stderr)
    assert validated_error(launch(folder, "status", *words, "absent").stderr)


def test_without_the_option_errors_are_text(folder: Path) -> None:
    assert launch(folder, "status", "absent").stderr.startswith("absent: no run")
