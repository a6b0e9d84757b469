"""The checkpoints of a run as the command line lists, verifies and exports them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.chains.checkpoints import find_folder, pick
from launcher.commands.checkpoints import CheckpointResult, put_back, show, verified
from launcher.runs.checkpoints import entries, newest
from launcher.runs.directory import RunDir
from launcher.runs.folder import RunFolderError
from tests.support.checkpoint_metadata_builders import about_of
from tests.support.cli import launch
from tests.support.launch_plans import small_launch
from tests.support.worlds import tiny_job


def save(folder: Path, step: int, *, name: str = "", **fields: object) -> Path:
    """A whole checkpoint, as far as can be told without its digests."""
    path = folder / (name or str(step))
    path.mkdir(parents=True)
    (path / "data").write_bytes(b"x" * 1000)
    about = about_of(tiny_job(), step=step, files={"data": 1000}, **fields)
    (path / "about.json").write_text(about.model_dump_json())
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Steps 100 (whole), 200 (whole), 300 (cut off), 400 (empty) and 150 (moved aside)."""
    folder = tmp_path / "checkpoints"
    save(folder, 100)
    save(folder, 200, eval_loss=2.25)
    (save(folder, 300) / "data").write_bytes(b"x" * 999)
    (folder / "400").mkdir()
    save(folder, 150, name="150.damaged")
    (folder / "lease.json").write_text("{}")
    return folder


def test_every_step_is_listed_with_what_is_wrong_with_it(folder: Path) -> None:
    assert [(entry.step, entry.problem) for entry in entries(str(folder))] == [
        (400, "about.json is missing"),
        (300, "data has 999 bytes, expected 1,000"),
        (200, ""),
        (150, "moved aside as damaged"),
        (100, ""),
    ]


def test_the_newest_whole_one_is_what_a_run_goes_on_from(folder: Path) -> None:
    about = newest(str(folder))
    assert about is not None
    assert about.step == 200
    assert newest(str(folder / "nowhere")) is None


def test_a_checkpoint_is_picked_by_its_step(folder: Path) -> None:
    found = list(entries(str(folder)))
    assert pick(found, "here", None).step == 200
    assert pick(found, "here", 100).step == 100
    with pytest.raises(RunFolderError, match=r"step 300 \(data has .*\). Whole ones: 200, 100"):
        pick(found, "here", 300)


def test_the_table_says_what_a_checkpoint_was_saved_on(folder: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    show(list(entries(str(folder))), "here", "small")
    shown = capsys.readouterr().out
    assert "`launch checkpoints restore-damaged small` puts back what is whole" in shown
    (line,) = [line for line in shown.splitlines() if "2.2500" in line]
    for part in ("200", "1000 B", "2 hosts x 4 devices, data 1 x fsdp 4 x tensor 2", "whole"):
        assert part in line


def test_json_has_one_object_per_step(folder: Path) -> None:
    listed = {entry.step: CheckpointResult.of(entry) for entry in entries(str(folder))}
    assert listed[200].whole
    assert (listed[200].bytes, listed[200].eval_loss, listed[200].hosts) == (1000, 2.25, 2)
    assert listed[300].problem == "data has 999 bytes, expected 1,000"


VERIFY = """
import json, sys
from pathlib import Path
print("a library says hello")
for folder in sys.argv[1:]:
    name = Path(folder).name
    if name.startswith("200"):
        print(json.dumps({"folder": folder, "ok": False, "problem": "a digest differs"}))
    if name.startswith("150"):
        print(json.dumps({"folder": folder, "ok": True, "problem": ""}))
sys.exit(1)
"""


@pytest.fixture
def fake_check(monkeypatch) -> None:
    """Says that 200 is damaged, 150 whole, and nothing of others."""
    real = subprocess.run

    def run(command: list[str], **options: object) -> object:
        assert command[1:3] == ["-m", "trainer.tools.verify_checkpoint"]
        return real([sys.executable, "-c", VERIFY, *command[3:]], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", run)


# jax warns of a fork in a process that has used it, as tests before this one may have.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_the_check_of_every_array_says_is_shown(folder: Path, fake_check: None) -> None:
    found = {entry.step: entry for entry in verified(list(entries(str(folder))))}
    assert (found[200].problem, found[200].verified) == ("a digest differs", True)
    assert found[100].problem == "not verified: the check ended with exit code 1"
    assert found[400].problem == "about.json is missing"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_whole_checkpoint_that_was_moved_aside_is_put_back(
    folder: Path, fake_check: None
) -> None:
    (folder / "150.damaged" / "problem.txt").write_text("Stale file handle")
    (result,) = put_back(list(entries(str(folder))))
    assert (Path(result.folder).name, result.restored, result.problem) == (
        "150.damaged",
        True,
        None,
    )
    assert sorted(path.name for path in (folder / "150").iterdir()) == ["about.json", "data"]
    assert {e.step: e.problem for e in entries(str(folder))}[150] == ""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_checkpoint_that_is_damaged_not_verified_or_replaced_stays_aside(
    folder: Path, fake_check: None
) -> None:
    save(folder, 150)
    save(folder, 200, name="200.damaged.1")
    save(folder, 350, name="350.damaged")
    before = sorted(path.name for path in folder.iterdir())
    results = put_back(list(entries(str(folder))))
    found = {Path(one.folder).name: one.problem for one in results if not one.restored}
    assert found == {
        "150.damaged": "it is whole, but there is another checkpoint of step 150",
        "200.damaged.1": "a digest differs",
        "350.damaged": "not verified: the check ended with exit code 1",
    }
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_run_is_found_by_name_path_or_the_folder_itself(tmp_path: Path) -> None:
    made = small_launch(tmp_path)
    RunDir.create(made).close()
    checkpoints = made.run_dir / "checkpoints"
    assert find_folder("small", tmp_path / "runs") == str(checkpoints)
    assert find_folder(str(made.run_dir), Path("elsewhere")) == str(checkpoints)
    checkpoints.mkdir()
    assert find_folder(str(checkpoints), Path("elsewhere")) == str(checkpoints)
    assert find_folder("gs://bucket/x", Path("runs")) == "gs://bucket/x"
    with pytest.raises(RunFolderError, match="Did you mean 'small'"):
        find_folder("smal", tmp_path / "runs")


def test_the_command_lists_and_refuses(folder: Path, tmp_path: Path) -> None:
    listed = launch(tmp_path, "checkpoints", "checkpoints", "-o", "json")
    assert listed.returncode == 0, listed.stderr
    assert [entry["step"] for entry in json.loads(listed.stdout)] == [400, 300, 200, 150, 100]
    for words, message in [
        (["nowhere"], "nowhere: no run of this name in runs"),
        (["export", "checkpoints", "--step", "7", "--to", "x"], "no whole checkpoint of step 7"),
    ]:
        refused = launch(tmp_path, "checkpoints", *words)
        assert refused.returncode == 2
        assert message in refused.stderr
