"""Runs are remembered by their folders, so that they are found from any other."""

from dataclasses import replace
from pathlib import Path

import pytest

from launcher.runs import registry
from launcher.runs.directory import RunDir
from launcher.runs.folder import RunFolderError, find_run
from tests.support.launch_plans import small_launch


@pytest.fixture(autouse=True)
def _nothing_noted_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def create(folder: Path) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with RunDir.create(replace(small_launch(folder.parent), run_dir=folder)):
        return folder


def test_a_run_is_found_by_its_name_from_another_folder(tmp_path: Path) -> None:
    run = create(tmp_path / "project" / "small")
    assert registry.registered() == [run]
    assert find_run("small", tmp_path / "elsewhere") == run


def test_the_run_here_comes_before_one_elsewhere(tmp_path: Path) -> None:
    create(tmp_path / "project" / "small")
    here = create(tmp_path / "runs" / "small")
    assert find_run("small", tmp_path / "runs") == here


def test_a_name_that_several_have_is_an_error_that_lists_them(tmp_path: Path) -> None:
    folders = [create(tmp_path / project / "small") for project in ("one", "two")]
    with pytest.raises(RunFolderError, match="several runs have this name") as caught:
        find_run("small", tmp_path / "elsewhere")
    assert all(str(folder) in str(caught.value) for folder in folders)


def test_a_run_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    run = create(tmp_path / "project" / "small")
    run.rename(tmp_path / "moved")
    assert registry.registered() == []
    run.mkdir()
    (run / "job.yaml").touch()
    assert registry.registered() == []


def test_a_run_that_is_out_of_reach_is_found_again(tmp_path: Path) -> None:
    run = create(tmp_path / "project" / "small")
    (tmp_path / "project").rename(tmp_path / "aside")
    (tmp_path / "project").symlink_to("project")  # ELOOP, as ESTALE of a file server
    assert registry.registered() == []
    (tmp_path / "project").unlink()
    (tmp_path / "aside").rename(tmp_path / "project")
    assert registry.registered() == [run]


def test_a_damaged_record_is_not_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(tmp_path / "project" / "small")
    for record in (tmp_path / "state" / "slipway" / "runs").iterdir():
        record.write_text("")
    (tmp_path / "job.yaml").touch()
    monkeypatch.chdir(tmp_path)
    assert registry.registered() == []


def test_a_name_elsewhere_is_suggested(tmp_path: Path) -> None:
    create(tmp_path / "project" / "small")
    with pytest.raises(RunFolderError, match="Did you mean 'small'"):
        find_run("smal", tmp_path / "elsewhere")


def test_without_a_state_folder_a_run_is_made_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert registry.is_run(create(tmp_path / "project" / "small"))
    assert registry.registered() == []
