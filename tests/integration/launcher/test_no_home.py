"""Users without a home, homes that cannot be written, file systems without locks."""

import errno
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from typer.testing import CliRunner

from launcher.cli.app import app
from launcher.core.files import NoStateFolderError, make_state_folder
from launcher.runs.directory import RunDir
from launcher.runs.folder import RunFolderError
from launcher.runs.status import take_all
from tests.support.launch_plans import small_launch
from trainer.contract.config.loader import ConfigError
from trainer.contract.storage.cache_dirs import make_cache_folder
from trainer.data import cache_lock

NOBODY = 65534
NO_HOME = """\
import pwd, sys
def getpwuid(uid):
    raise KeyError(uid)
pwd.getpwuid = getpwuid
from launcher.cli.app import app
app(sys.argv[1:], prog_name="launch")
"""


def launch_without_home(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Plays a user without an entry in passwd, as in a container of OpenShift."""
    keep = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    command = [sys.executable, "-c", NO_HOME, *words]
    return subprocess.run(
        command, cwd=folder, env=keep, capture_output=True, text=True, timeout=120
    )


def test_without_a_home_runs_are_listed(tmp_path: Path) -> None:
    listed = launch_without_home(tmp_path, "list")
    assert listed.returncode == 0, listed.stderr
    assert "no run in runs" in listed.stdout


def test_without_a_home_what_must_be_remembered_is_refused_in_one_line(tmp_path: Path) -> None:
    refused = launch_without_home(tmp_path, "up", "local")
    assert refused.returncode == 2, refused.stderr
    assert "set XDG_STATE_HOME to a folder" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_run_that_only_another_user_may_write_is_not_resumed() -> None:
    user = os.geteuid()
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "events.jsonl").touch(0o444)
        os.seteuid(user or NOBODY)
        try:
            with pytest.raises(RunFolderError, match=r"events\.jsonl cannot be written: "):
                RunDir.open(folder)
        finally:
            os.seteuid(user)


def test_a_state_folder_that_cannot_be_made_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(NoStateFolderError, match=r"Not a directory\. Set XDG_STATE_HOME"):
        make_state_folder("clusters")


def test_a_cache_that_cannot_be_made_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"Not a directory\. Set XDG_CACHE_HOME"):
        make_cache_folder("tokens")


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: object, operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.mark.usefixtures("no_locks")
def test_run_on_file_system_without_locks_is_refused_leaves_nothing(
    tmp_path: Path,
) -> None:
    launch = small_launch(tmp_path)
    with pytest.raises(RunFolderError, match=r"has no locks \(flock: .*--runs DIR"):
        RunDir.create(launch)
    assert list(launch.run_dir.parent.iterdir()) == []


def test_fresh_moves_no_run_that_may_be_alive(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    launch = small_launch(tmp_path)
    RunDir.create(launch).close()
    request.getfixturevalue("no_locks")
    with pytest.raises(RunFolderError, match="has no locks"):
        RunDir.create(launch, fresh=True)
    assert [path.name for path in launch.run_dir.parent.iterdir()] == ["small"]
    assert {found.name: found.state for found in take_all(launch.run_dir.parent)}["small"] == (
        "unknown"
    )
    told = CliRunner().invoke(app, ["status", str(launch.run_dir)])
    assert told.exit_code == 2
    assert "has no locks" in told.output


@pytest.mark.usefixtures("no_locks")
def test_a_cache_on_a_file_system_without_locks_names_the_variable(tmp_path: Path) -> None:
    held = cache_lock.held(tmp_path / "tokens.lock", lambda done, total, builder: None)
    with pytest.raises(ConfigError, match=r"does not support locks .*XDG_CACHE_HOME"), held:
        pass


def test_a_folder_that_fails_half_made_has_never_had_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = small_launch(tmp_path)
    monkeypatch.setattr("launcher.runs.directory.dump", lambda job: "\udcff")
    with pytest.raises(UnicodeEncodeError):
        RunDir.create(launch)
    assert list(launch.run_dir.parent.iterdir()) == []


def test_a_folder_that_is_no_run_is_refused_as_one(tmp_path: Path) -> None:
    launch = small_launch(tmp_path)
    launch.run_dir.mkdir(parents=True)
    (launch.run_dir / "notes.txt").write_text(json.dumps("mine"))
    with pytest.raises(RunFolderError, match=r"exists and is no run's folder\. .*--fresh"):
        RunDir.create(launch)
