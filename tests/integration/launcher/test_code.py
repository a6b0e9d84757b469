"""What of a project goes to the hosts: the same bytes, and not what `.gitignore` leaves out."""

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from launcher.providers.ray import code_bundle
from launcher.providers.ray.code_bundle import pack
from trainer.contract.config.loader import ConfigError


@pytest.fixture(params=["a repository", "no repository"])
def project(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """With something that is ignored, an executable, a link and a folder below."""
    project = tmp_path / "a project"
    (project / "jobs").mkdir(parents=True)
    for name in ("pyproject.toml", "uv.lock", "train.py", "jobs/job.yaml", "big.bin"):
        (project / name).write_text(name)
    (project / ".gitignore").write_text("*.bin\n.venv/\n")
    (project / ".venv").mkdir()
    (project / ".venv" / "python").write_text("")
    (project / "run.sh").write_text("#!/bin/sh\n")
    (project / "run.sh").chmod(0o700)
    (project / "link").symlink_to("train.py")
    if request.param == "a repository":
        subprocess.run(["git", "init", "--quiet", str(project)], check=True)
    return project


def names(packed: code_bundle.Code) -> list[str]:
    return [entry.name for entry in entries(packed)]


def entries(packed: code_bundle.Code) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(packed.archive)) as archive:
        return archive.getmembers()


def test_what_is_ignored_stays_here(project: Path) -> None:
    assert names(pack(project)) == [
        ".gitignore", "jobs/job.yaml", "link", "pyproject.toml", "run.sh", "train.py", "uv.lock"
    ]  # fmt: skip


def test_the_project_is_found_from_a_folder_below(project: Path) -> None:
    packed = pack(project / "jobs")
    assert (packed.root, packed.below) == (project, Path("jobs"))


def test_the_same_files_are_the_same_bytes_at_any_time(project: Path) -> None:
    before = pack(project).sha256
    os.utime(project / "train.py", (1e9, 1e9))
    assert pack(project).sha256 == before
    (project / "train.py").write_text("something else")
    assert pack(project).sha256 != before


def test_an_executable_and_a_link_stay_what_they_are(project: Path) -> None:
    found = {entry.name: entry for entry in entries(pack(project))}
    assert (found["run.sh"].mode, found["train.py"].mode) == (0o755, 0o644)
    assert found["link"].linkname == "train.py"


def test_what_is_under_version_control_goes_though_it_is_ignored(project: Path) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=project, check=True)
    subprocess.run(["git", "add", "--force", "big.bin"], cwd=project, check=True)
    assert "big.bin" in names(pack(project))


def test_too_much_is_refused_with_the_largest_files(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_bundle, "MOST_BYTES", 5000)
    (project / "weights.npy").write_bytes(bytes(10_000))
    with pytest.raises(ConfigError) as error:
        pack(project)
    assert "9.84 KiB of files, more than the 4.88 KiB" in str(error.value)
    assert "9.77 KiB  weights.npy" in str(error.value)


def test_without_a_lock_file_it_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="uv lock"):
        pack(tmp_path)
