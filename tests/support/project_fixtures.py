"""A project that is launched from, and traces of what it leaves."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.assert_no_leftovers import Traces
from tests.support.launches import JOB

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def traces() -> Iterator[Traces]:
    with Traces() as traces:
        yield traces


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Slipway's own code with a job and its corpus, in a folder of its own."""
    project = tmp_path_factory.mktemp("project")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file() and not name.startswith(("tests/", "docs/")):
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, project / name)
    (project / "job.yaml").write_text(JOB.replace("steps: 100000", "steps: 12"))
    with (project / ".gitignore").open("a") as ignored:
        ignored.write("*.out\n")  # what the launches of tests print
    (project / "corpus").mkdir()
    for name in "abcdef":
        (project / "corpus" / f"{name}.txt").write_text(f"text of {name} " * 100)
    return project
