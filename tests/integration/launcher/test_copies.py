"""Files that hosts send back: what a compromised host can write on the machine that launches."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from launcher.gang.run_dir_sync import Copies

EVIL = b"bad"
NAMES = [
    "job.yaml", "../job.yaml", "../../outside", "logs/../job.yaml", "plans/0001.json", "run_id",
    "kubernetes.json", "events.jsonl", "logs/host-0002.log", "{here}/outside",
]  # fmt: skip


class Host:
    """Answers once with files of the names that it likes."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = files
        self.written = SimpleNamespace(remote=lambda: self)

    def answer(self) -> dict[str, bytes]:
        files, self._files = self._files, {}
        return files


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's folder; calls to its hosts are answered immediately."""

    def wait(calls: list[Any], **_: object) -> tuple[list[Any], list[Any]]:
        return calls, []

    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "get", lambda call: call.answer())
    run_dir = tmp_path / "runs" / "small"
    (run_dir / "logs").mkdir(parents=True)
    (run_dir / "job.yaml").write_text("of this machine")
    return run_dir


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def receive(run_dir: Path, *answers: dict[str, bytes]) -> dict[str, bytes]:
    """What is below the folder of the run's folder once the hosts have answered."""
    here = run_dir.parents[1]
    hosts = [Host({k.format(here=here): v for k, v in answer.items()}) for answer in answers]
    Copies(hosts, range(len(hosts)), run_dir).finish(lost=[])
    return files(here)


@pytest.mark.parametrize("name", [*NAMES, "metrics.jsonl", "sample.txt"])
def test_a_host_writes_no_file_but_its_own_log(run_dir: Path, name: str) -> None:
    before = files(run_dir.parents[1])
    after = receive(run_dir, {}, {name: EVIL, "logs/host-0001.log": b"good"})
    assert after == {**before, "runs/small/logs/host-0001.log": b"good"}


@pytest.mark.parametrize("name", [*NAMES, "logs/host-0001.log"])
def test_the_first_host_writes_its_log_and_what_its_program_adds_to(
    run_dir: Path, name: str
) -> None:
    before = files(run_dir.parents[1])
    its = ["logs/host-0000.log", "metrics.jsonl", "samples.jsonl", "sample.txt"]
    after = receive(run_dir, {name: EVIL, **dict.fromkeys(its, b"good")})
    assert after == {**before, **{f"runs/small/{one}": b"good" for one in its}}


def test_a_host_gets_the_programs_of_its_process_alone(run_dir: Path) -> None:
    programs = run_dir / "programs"
    programs.mkdir()
    for name in ("0001-0000", "0002-0000", "0002-0001"):
        (programs / f"{name}.bundle").write_bytes(b"\xff")
    sent: list[set[str]] = []
    host = SimpleNamespace(
        receive=SimpleNamespace(remote=lambda _, files, *__: sent.append(set(files)))
    )
    Copies([host, host], [0, 1], run_dir).send()
    first, second = ({name for name in files if "bundle" in name} for files in sent)
    assert first == {"programs/0001-0000.bundle", "programs/0002-0000.bundle"}
    assert second == {"programs/0002-0001.bundle"}
