"""`launch plan --check-sharding`, as a person and a program meet it."""

import json
from pathlib import Path

import pytest

from tests.support.cli import JOB, launch
from tests.support.launch_plans import COMMAND_JOB
from tests.support.worlds import mesh_of

WORDS = ["plan", "-c", "tpu-v4-32", "job.yaml", "mesh.tensor=2", "--check-sharding"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


@pytest.mark.slow
def test_places_are_ranked_under_the_plan_and_counted(folder: Path) -> None:
    result = launch(folder, *WORDS)
    assert result.returncode == 0, result.stderr
    plan, _, report = result.stdout.partition("per device and step, under explicit axis types\n")
    assert "data 1 x fsdp 8 x tensor 2" in plan
    places = [line for line in report.splitlines() if line.startswith("trainer/")]
    assert len(places) == len(set(places))
    assert any("mlp.py" in line and "MLP.__call__" in line for line in places)
    assert "parts over tensor -> bfloat16[16@fsdp,64," in report
    last = report.splitlines()[-1]
    assert last.startswith("explicit axis types: ambiguous at 4 places, operations reshard at 0")


@pytest.mark.slow
def test_a_program_gets_the_same_as_json(folder: Path) -> None:
    result = launch(folder, *WORDS, "--simulate", "-o", "json")
    assert result.returncode == 0, result.stderr
    content = json.loads(result.stdout)
    assert content["plan"]["mesh"] == mesh_of(fsdp=8, tensor=2)
    found = content["explicit"]
    assert [one["bytes"] for one in found] == sorted((one["bytes"] for one in found), reverse=True)
    assert {one["kind"] for one in found} == {"ambiguous", "constraint"}
    assert {one["backward"] for one in found} == {False, True}
    gathered = next(one for one in found if one["new"].endswith("[64,4@tensor,16]"))
    assert gathered["old"] == "float32[64@fsdp,4@tensor,16]"
    assert set(gathered["place"][0]) == {"file", "line", "function"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", "command.yaml", "--check-sharding"], "a job with a `command` cannot be analyzed"),
        (["plan", "job.yaml", "--check-sharding", "--compile"], "one of them at a time"),
        ([*WORDS, "mesh.pipeline=2"], "the check has no stages"),
    ],
)
def test_what_cannot_be_checked_is_refused(folder: Path, words: list[str], message: str) -> None:
    (folder / "command.yaml").write_text(COMMAND_JOB)
    result = launch(folder, *words)
    assert result.returncode == 2
    assert message in result.stderr
