"""A Slurm of two nodes, and a folder that runs are launched from."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.assert_no_leftovers import Traces
from tests.support.launches import JOB
from tests.support.slurm_cluster import slurm

CLUSTER = """\
accelerator: cpu
hosts: 2
devices_per_host: 1
provider: {kind: slurm, partition: low, sbatch_args: []}
"""


@pytest.fixture(scope="session")
def slurm_environment() -> Iterator[dict[str, str]]:
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # sockets' paths are short
    with slurm(folder, ["n1", "n2"]) as environment:
        yield environment
    shutil.rmtree(folder)


@pytest.fixture
def traces(slurm_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Traces]:
    monkeypatch.setenv("SLURM_CONF", slurm_environment["SLURM_CONF"])
    with Traces() as traces:
        yield traces
        traces.assert_nothing_left()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text("text of a host " * 400)
    (tmp_path / "job.yaml").write_text(JOB.replace("steps: 100000", "steps: 40"))
    (tmp_path / "slurm.yaml").write_text(CLUSTER)
    return tmp_path
