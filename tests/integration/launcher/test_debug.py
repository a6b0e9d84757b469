"""`launch debug`: an archive with what a bug report needs, and without any secret."""

import json
import zipfile
from pathlib import Path

import pytest

from launcher.core.states import RunState
from tests.support.cli import launch
from tests.support.run_folders import add_events, add_log, add_steps, make_run

DECLARED, SHORT, FROM_ENV = "pl4nted-declared", "ab1", "pl4nted-by-name"
IN_TEXT = [f"pl4nted-{number}" for number in range(6)]
ENVIRONMENT = {
    "PLANTED": DECLARED, "TINY": SHORT, "SOME_API_KEY": FROM_ENV, "JAX_PLATFORMS": "cpu",
    "SLIPWAY_TOKEN": IN_TEXT[5],
}  # fmt: skip


def planted(folder: Path) -> Path:
    """A failed run with secrets in every file that a user's program or job can write to."""
    with make_run(folder) as run:
        job = run.folder / "job.yaml"
        text = job.read_text().replace("secrets: []", "secrets: [PLANTED, TINY]")
        job.write_text(f"{text}\n# password: {IN_TEXT[0]}\n")
        add_steps(run, 1, 2)
        both = f"{DECLARED} {SHORT} {FROM_ENV}"
        add_log(run, 0, f"{both}\nlogin --api-key {IN_TEXT[1]}\n".encode())
        add_log(run, 1, f"https://me:{IN_TEXT[2]}@host/ {json.dumps({'k': DECLARED})}\n".encode())
        error = f"{both}: token={IN_TEXT[3]}"
        add_events(run, {"event": "error", "message": json.dumps({"auth_token": IN_TEXT[4]})})
        add_events(run, {"event": "warning", "message": error})
        run.set_state(RunState.FAILED, reason=f"it has printed {both}")
        with (run.folder / "logs" / "launch.log").open("a") as log:
            log.write(f"{both}\n")
    (run.folder / ".slurm-secrets.json").write_text(json.dumps({"PLANTED": DECLARED}))
    return run.folder


def texts_of(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        return {name.partition("/")[2]: archive.read(name).decode() for name in names}


def test_archive_has_no_planted_secret(tmp_path: Path) -> None:
    folder = planted(tmp_path)
    done = launch(tmp_path, "debug", "small", environment=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    texts = texts_of(folder / "debug.zip")
    for name, text in texts.items():
        for secret in [DECLARED, FROM_ENV, *IN_TEXT]:
            assert secret not in text, name
        assert f" {SHORT} " not in text, name
    whole = "\n".join(texts.values())
    assert whole.count("[redacted]") > 10
    assert "pl4nted" not in whole + (folder / "debug.zip").read_bytes().decode(errors="ignore")


def test_archive_has_what_a_bug_report_needs(tmp_path: Path) -> None:
    folder = planted(tmp_path)
    launch(tmp_path, "debug", "small", environment=ENVIRONMENT)
    texts = texts_of(folder / "debug.zip")
    assert texts.keys() == {
        "README.txt", "why.txt", "status.json", "cluster.json", "versions.json",
        "environment.json", "job.yaml", "state.json", "plans/0001.json", "events.jsonl",
        "metrics.jsonl", "logs/host-0000.log", "logs/host-0001.log", "logs/launch.log",
    }  # fmt: skip
    assert "small failed" in texts["why.txt"]
    assert json.loads(texts["status.json"])["state"] == "failed"
    assert json.loads(texts["versions.json"]).keys() > {"slipway", "python", "jax", "ray", "system"}
    assert json.loads(texts["environment.json"])["JAX_PLATFORMS"] == "cpu"
    assert json.loads(texts["cluster.json"])["cluster"]["accelerator"] == "cpu"


def test_only_the_user_can_read_the_archive(tmp_path: Path) -> None:
    folder = planted(tmp_path)
    launch(tmp_path, "debug", "small")
    assert (folder / "debug.zip").stat().st_mode & 0o777 == 0o600


def test_large_log_is_cut_at_a_line(tmp_path: Path) -> None:
    with make_run(tmp_path) as run:
        add_log(run, 0, b"".join(b"%09d %s\n" % (n, DECLARED.encode()) for n in range(50_000)))
        run.set_state(RunState.FINISHED)
    done = launch(tmp_path, "debug", "small", "-o", "json", environment={"MY_TOKEN": DECLARED})
    log = texts_of(run.folder / "debug.zip")["logs/host-0000.log"].splitlines()
    assert log[-1] == "000049999 [redacted]"
    assert all(len(line) == len(log[-1]) for line in log)
    assert json.loads(done.stdout)["bytes"] < 1 << 20


def test_broken_run_has_an_archive_that_says_what_is_broken(tmp_path: Path) -> None:
    with make_run(tmp_path) as run:
        run.set_state(RunState.FINISHED)
    (run.folder / "state.json").write_text('{"attempt": "many"}')
    (run.folder / "job.yaml").write_text("steps: [")
    assert launch(tmp_path, "debug", "small").returncode == 0
    assert "attempt" in json.loads(texts_of(run.folder / "debug.zip")["status.json"])["error"]


def test_another_file_is_not_replaced(tmp_path: Path) -> None:
    folder = planted(tmp_path)
    (tmp_path / "mine.zip").write_bytes(b"mine")
    done = launch(tmp_path, "debug", "small", "--to", "mine.zip")
    assert done.returncode == 2
    assert "is no archive of `launch debug`" in done.stderr
    assert (tmp_path / "mine.zip").read_bytes() == b"mine"
    assert not (folder / "debug.zip").exists()


@pytest.mark.parametrize("to", ["absent/debug.zip", "."])
def test_unusable_target_is_an_error(tmp_path: Path, to: str) -> None:
    planted(tmp_path)
    assert launch(tmp_path, "debug", "small", "--to", to).returncode == 2


def test_second_archive_replaces_the_first(tmp_path: Path) -> None:
    planted(tmp_path)
    assert [launch(tmp_path, "debug", "small").returncode for _ in range(2)] == [0, 0]
