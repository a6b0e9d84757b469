"""Compiled programs that a host has from another one: its process compiles nothing."""

from collections.abc import Sequence
from pathlib import Path

from launcher.gang.program_archive import ProgramArchive
from launcher.host.program_files import ProgramFile, ProgramFiles
from tests.support import gang
from tests.support.jobs import job_of, world_of

WORLD = world_of(2, 1)
STEPS, FIRST_STEPS = 4, 2


def attempt(number: int, folder: Path, disks: Sequence[Path]) -> list[tuple[int, int]]:
    """Runs an attempt on hosts with these disks.

    Returns the traces and compilations of each process up to its first step.
    """
    until = FIRST_STEPS if number == 1 else None
    job = job_of(
        steps=STEPS, stop_after_step=until, eval={"every_steps": 2, "batches": 1}, sample=None,
        checkpoint={"every_steps": FIRST_STEPS},
    )  # fmt: skip
    host_env = {process: {"XDG_CACHE_HOME": str(disk)} for process, disk in enumerate(disks)}
    run_dir = folder / "run"
    ended = gang.wait(run_dir, gang.start(job, WORLD, run_dir, number, host_env=host_env))
    assert ended.codes == [0, 0], ended.outputs
    compiled = [event for event in ended.events if event["event"] == "compiled"]
    return [(event["traces"], event["compilations"]) for event in compiled]


def files_on(disk: Path) -> ProgramFiles:
    return ProgramFiles({"XDG_CACHE_HOME": str(disk)})


def content_of(file: ProgramFile, host: ProgramFiles) -> bytes:
    content = b""
    while part := host.part(file.name, len(content)):
        content += part
    return content


def test_a_process_on_a_host_with_an_empty_disk_compiles_nothing(tmp_path: Path) -> None:
    """Files pass from one disk to another, as through the agents."""
    disks = [tmp_path / f"disk-{host}" for host in range(3)]
    assert any(traces and compiled for traces, compiled in attempt(1, tmp_path, disks[:2]))
    archive = ProgramArchive(tmp_path, 10**9)
    for process, disk in enumerate(disks[:2]):
        host = files_on(disk)
        used = host.used_since(0.0)
        assert not any(archive.add(file, content_of(file, host)) for file in used)
        archive.record(process, used)
    new = files_on(disks[2])
    for file in archive.needed(1, on_cpu=True):
        assert new.take(file, 0, archive.part(file, 0)) == ""
    assert attempt(2, tmp_path, [disks[0], disks[2]]) == [(0, 0), (0, 0)]
